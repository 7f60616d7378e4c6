"""The recorder: hooks on a training that keep what a replay needs, and write a capsule when a step goes wrong."""

from gradforensics.recorder.recorder import Recorder as Recorder
