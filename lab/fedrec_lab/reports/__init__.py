"""Reports: the run folder, tables, figures and the HTML page."""
