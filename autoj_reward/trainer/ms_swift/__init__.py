"""ms-swift puts the folder of a plugin first on Python's path: this one holds nothing else."""
