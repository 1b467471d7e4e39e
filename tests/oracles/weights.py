"""The weights of a model by their names in the 2018 code."""

from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange.projects import tf1


def variables_by_name(model):
    """Returns the weights by 2018's names, and by ours if 2018 has no such weight."""
    return {tf1.TABLE.theirs(name) or name: variable for name, variable in weights_by_name(model).items()}
