"""The configurations: files for --config."""
