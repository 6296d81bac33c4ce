"""The recipe of the models that ship: judge, scalar model and scenario classifier."""
