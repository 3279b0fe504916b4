"""Training of small parallel drafters by self-distillation.

Three steps, each a command of `python -m specengine.train`: `answers` lets the target answer
prompts, `fit` trains a DFlash2 drafter on those answers, `evaluate` measures it by the rule of the
decoding loop.
"""
