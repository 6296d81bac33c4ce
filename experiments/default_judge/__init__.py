"""Recipe of the models in this package: judge, scalar reward model and scenario classifier."""
