"""Flushes a GPU's last-level cache by reading a large buffer; written lines would be written back during timing."""

from __future__ import annotations

from typing import Any

import numpy as np

from roller.backends.cuda.cupy_runtime import allocate

ENTRY = "roller_read"
_THREADS, _VECTOR_BYTES = 256, 16
#: Size of the buffer relative to the cache, and its minimum size in bytes; a cache keeps some lines longer.
_TIMES, _LEAST_BYTES = 2, 1 << 25
#: Blocks per unit, enough to saturate the memory bandwidth.
_BLOCKS_PER_UNIT = 4

#: Source for HIP, built on machines with a compiler. The store never happens, since the buffer holds zeros.
SOURCE = """
struct alignas(16) Four { unsigned x, y, z, w; };
extern "C" __global__ void roller_read(const Four* data, const unsigned long long* count, unsigned* out) {
  unsigned seen = 0;
  for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < *count;
       i += (unsigned long long)gridDim.x * blockDim.x)
    seen |= data[i].x | data[i].y | data[i].z | data[i].w;
  if (seen != 0) *out = seen;
}
"""
#: The same kernel in an early version of PTX, which every driver compiles; the machine may have no compiler.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry roller_read(.param .u64 data, .param .u64 count, .param .u64 out) {
  .reg .pred %p<2>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd0, [data];
  ld.param.u64 %rd1, [count];
  ld.param.u64 %rd2, [out];
  cvta.to.global.u64 %rd0, %rd0;
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  ld.global.u64 %rd3, [%rd1];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %rd4, %r0, %r1;
  cvt.u64.u32 %rd5, %r2;
  add.u64 %rd4, %rd4, %rd5;
  mul.wide.u32 %rd5, %r3, %r1;
  mov.u32 %r4, 0;
$L__AGAIN:
  setp.ge.u64 %p1, %rd4, %rd3;
  @%p1 bra $L__DONE;
  shl.b64 %rd6, %rd4, 4;
  add.u64 %rd6, %rd0, %rd6;
  ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd6];
  or.b32 %r5, %r5, %r6;
  or.b32 %r7, %r7, %r8;
  or.b32 %r5, %r5, %r7;
  or.b32 %r4, %r4, %r5;
  add.u64 %rd4, %rd4, %rd5;
  bra $L__AGAIN;
$L__DONE:
  setp.eq.u32 %p1, %r4, 0;
  @%p1 bra $L__END;
  st.global.u32 [%rd2], %r4;
$L__END:
  ret;
}
\0"""


class CacheFlush:
    """Buffer larger than the last-level cache, and the kernel that reads it.

    Parameters
    ----------
    image
        Built kernel. Without an image, or if the driver refuses it, the buffer is overwritten instead, and the
        write-back makes the following run look slower.
    """

    def __init__(self, cp: Any, stream: Any, cache_bytes: int, units: int, image: bytes | None) -> None:
        self._stream, self._bytes = stream, max(_TIMES * cache_bytes, _LEAST_BYTES) // _VECTOR_BYTES * _VECTOR_BYTES
        # After the buffer: the number of its vectors, and the word that is never written.
        self._memory = allocate(cp, self._bytes + _VECTOR_BYTES)
        self._memory.memset(0, self._bytes + _VECTOR_BYTES)
        count = np.array([self._bytes // _VECTOR_BYTES], np.uint64)
        runtime, end = cp.cuda.runtime, self._memory.ptr + self._bytes
        runtime.memcpy(end, count.ctypes.data, count.nbytes, runtime.memcpyHostToDevice)
        self._arguments = tuple(np.uint64(p) for p in (self._memory.ptr, end, end + count.nbytes))
        self._grid = (max(1, _BLOCKS_PER_UNIT * units), 1, 1)
        self._read = None if image is None else _load_flush_kernel(cp, image)

    @property
    def reads(self) -> bool:
        """Whether the flush only reads, which leaves no lines to write back."""
        return self._read is not None

    def start(self) -> None:
        """Queue the flush in the stream."""
        if self._read is None:
            self._memory.memset_async(0, self._bytes, self._stream)
        else:
            self._read(self._grid, (_THREADS, 1, 1), self._arguments, 0, self._stream)


def _load_flush_kernel(cp: Any, image: bytes) -> Any:
    module = cp.cuda.Module()
    try:
        module.load(image)
        return module.get_function(ENTRY)
    except RuntimeError:  # CUDADriverError
        return None
