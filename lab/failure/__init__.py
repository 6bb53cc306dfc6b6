"""Applications whose participants fail and come back, step after step: the paper's Figure 12."""
