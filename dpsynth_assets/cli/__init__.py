"""The `dpsynth` command, a module a verb."""
