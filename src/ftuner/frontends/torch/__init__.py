"""PyTorch programs as graphs: `torch.export`'s, and those that `torch.compile` traces.

torch is imported by these modules, which are imported by name.
"""
