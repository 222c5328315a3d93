"""A network as plain C: a folder that builds anywhere, and runs as fast as its zeros allow."""

from pwoa.deploy.c.folder import write_c as write_c
from pwoa.models.compiled import CompiledModel as CompiledModel
from pwoa.models.compiled import load_c as load_c
