"""Training of small drafters by self-distillation.

Three steps, each a command of `python -m specengine.train`: `answers` lets the target answer
prompts, `fit` trains a DFlash, DFlash2, DSpark or EAGLE-3 drafter on those answers (and makes them
first where none are given), `evaluate` measures it in the decoding loop.
"""
