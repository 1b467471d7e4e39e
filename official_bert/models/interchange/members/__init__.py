"""The members of BERT's family. Each is a table of names of weights and keys of `config.json`, used both ways."""
