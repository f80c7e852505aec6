"""An evaluator of Jinja with limits, for chat templates of strangers."""
