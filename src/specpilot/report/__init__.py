"""What a run found, as JSON, figures and one page: a pure fold of its journal."""
