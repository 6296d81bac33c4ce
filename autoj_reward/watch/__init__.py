"""`autoj watch`: one page over the record of a run, read while it is written."""
