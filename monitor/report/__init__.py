"""Reports about finished or running trainings: a page, Markdown, figures and JSON from what runs have recorded."""
