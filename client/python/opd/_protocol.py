"""Made by protocol/gen_protocol.py from protocol.def, errors.def and dtype.def."""

from __future__ import annotations

PROTOCOL = 1

# name: (letters of the parameters, letter of the result)
REQUESTS: dict[str, tuple[str, str]] = {
    "hello": ("|sM", "M"),
    "status": ("", "M"),
    "op_list": ("", "a"),
    "op_info": ("s", "M"),
    "tensor_new": ("hsa|SS", "M"),
    "tensor_write": ("hiv", "n"),
    "tensor_read": ("hi|vv", "v"),
    "tensor_view": ("hhia|A", "M"),
    "tensor_attach": ("hs", "M"),
    "tensor_info": ("h", "M"),
    "tensor_list": ("", "a"),
    "shm_open": ("hif", "n"),
    "forward": ("saMa|M", "M"),
    "backward": ("haa|M", "a"),
    "sync": ("", "n"),
    "stop": ("", "n"),
    "reload": ("", "a"),
    "events": ("|iM", "M"),
    "rollback": ("s", "M"),
    "pin": ("sv", "M"),
    "check": ("sss|M", "M"),
    "op_code": ("ss|M", "a"),
    "plan": ("saM|M", "M"),
    "vjp": ("saaaaMa|M", "a"),
    "tensor_export": ("hh", "M"),
    "import_open": ("hsmbi", "n"),
    "import_tensor": ("hhisa|A", "M"),
    "tensor_accept": ("a", "n"),
    "device_restart": ("s", "M"),
    "tensor_copy": ("hh", "n"),
    "metrics": ("", "s"),
    "upgrade": ("|M", "M"),
    "trace": ("|M", "n"),
    "free": ("sa|M", "n"),
    "plan_export": ("ssaM|M", "M"),
    "version_page": ("", "M"),
    "tensor_free": ("a", "n"),
    "shm_close": ("h", "n"),
    "context_free": ("a", "n"),
    "drop": ("aa", "n"),
    "export_free": ("a", "n"),
    "import_close": ("a", "n"),
    "prepare": ("hssaM|M", "M"),
    "call": ("ha", "M"),
    "graph_begin": ("h|M", "n"),
    "graph_end": ("h", "M"),
    "replay": ("h|M", "M"),
    "graph_attach": ("hs", "M"),
    "kernels_add": ("s", "a"),
    "device_speed": ("s", "M"),
    "load": ("s|M", "M"),
    "unload": ("s", "n"),
    "done_word": ("Hi", "n"),
    "lane_open": ("hiSf", "n"),
    "lane_wait": ("i", "M"),
    "lane_call": ("ha", "M"),
}

# name: (number, class in opd.errors)
ERRORS: dict[str, tuple[int, str]] = {
    "invalid_argument": (1, "InvalidArgument"),
    "not_found": (2, "NotFound"),
    "compile_error": (3, "CompileError"),
    "kernel_fault": (4, "KernelFault"),
    "deadline_exceeded": (5, "DeadlineExceeded"),
    "out_of_memory": (6, "OutOfMemory"),
    "connection_lost": (7, "ConnectionLost"),
    "malformed_message": (8, "ProtocolError"),
    "unknown_method": (9, "ProtocolError"),
    "unavailable": (10, "Unavailable"),
    "internal": (11, "InternalError"),
}

# name: size of an element in bytes
DTYPES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}

# name: what acc_t is, where that is scalar_t
ACCUMULATORS: dict[str, str] = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
