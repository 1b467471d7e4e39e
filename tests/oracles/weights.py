"""The weights of a model by their names in the 2018 code."""

from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import tf1


def variables_by_name(model):
    """Weights that 2018 does not know keep our names."""
    return {tf1.TABLE.theirs(name) or name: variable for name, variable in weights_by_name(model).items()}
