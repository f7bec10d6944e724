"""Reports and comparisons of runs, as pages, figures and JSON, and the plots of every part of the product."""
