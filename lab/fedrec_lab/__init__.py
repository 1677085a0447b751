"""fedrec_lab: a federation in one process, published results, references, reports and audits."""
