"""`autoj watch`: a page that shows a run's journal, statistics and curves while the run writes
them."""
