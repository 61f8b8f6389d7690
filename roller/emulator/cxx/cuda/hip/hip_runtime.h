// HIP as the emitted kernels use it. A group of 32 lanes behaves as a warp does; see roller/templates/gpu/emit/hip.py.
#pragma once
#include "../../cuda_emulation.h"

// Lanes of a wavefront run in lock step: the mask is all of the group that was meant.
#undef __shfl_xor
#define __shfl_xor(value, lanes, width) __shfl_xor_sync(0xffffffffu, value, lanes, width)
