import running_max  # noqa: F401

from ftuner.frontends.onnx.importer import register_importer

register_importer(
    "com.example", "RunningMax", lambda context, node: [context.add("running_max", node.input(0))]
)
