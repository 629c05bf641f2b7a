"""The `dpsynth` command, with one module per subcommand."""
