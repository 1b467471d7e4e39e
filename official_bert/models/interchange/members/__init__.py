"""The members of BERT's family: a table each of names of weights and of keys of `config.json`, used both ways."""
