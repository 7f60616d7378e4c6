"""Running one step of a training again: the only package that runs the user's code, in a child process."""
