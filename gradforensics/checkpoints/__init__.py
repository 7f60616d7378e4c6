"""Files of tensors -> tensors, moments, travels, groups. It measures; it knows no threshold and runs nothing."""
