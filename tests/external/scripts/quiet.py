"""Never imports torch, and says which modules of ours it has got: quiet.py."""

import sys

import sitecustomize

print(sorted(name for name in sys.modules if name.split(".")[0] in ("chaos", "mecefo_runtime", "torch")))
print(sitecustomize.__file__, flush=True)
