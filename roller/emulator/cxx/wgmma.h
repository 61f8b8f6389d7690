// wgmma.mma_async of sm_90a: products of a warp group, both operands in the scratchpad, and the async proxy's fence.
//
// Written from the PTX manual and the canonical layouts of CUTLASS (mma_traits_sm90_gmma.hpp). Not verified on a device:
// - K-major with a swizzle ignores the leading offset; N-major with one row of swizzle atoms ignores it as well.
// - The swizzle acts on absolute shared addresses, so that a start address may be advanced within a row of the pattern.
// - Products are exact and summed in float32 in the order of k; the device's own order and rounding are not published.
// A matrix base offset other than 0, operand A in registers and accumulators of 16 bits are reported as unknown.
#pragma once

#include "ptx.h"  // the containers come first in the translated source: CUDA keywords are macros here

namespace emul {
namespace ptx {

template <class T>
T* place(T& variable) { return &variable; }

// Where an operand lies: rows run along M or N, columns along K; `transposed`: rows are contiguous instead of columns.
struct Operand {
  uint32_t start, leading, stride;
  int swizzle, row_bytes;  // address bits that are exchanged, bytes of one row of the swizzle's pattern
  bool transposed;

  Operand(uint64_t d, bool transposed) : transposed(transposed) {
    start = (uint32_t)(d & 0x3fff) << 4, leading = (uint32_t)(d >> 16 & 0x3fff) << 4, stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    const int bits[] = {0, 3, 2, 1};
    swizzle = bits[d >> 62];
    row_bytes = 16 << swizzle;
    if (d >> 49 & 7) fail("misuse", "wgmma: a matrix base offset of %d is not emulated; start the tile at a multiple of %d bytes", (int)(d >> 49 & 7), 8 * row_bytes);
  }
  // Shared address of the 16 bytes that hold element (row, k), and seven neighbours along the contiguous direction.
  uint32_t chunk(int row, int k) const {
    uint32_t address = start;
    if (!transposed) {
      address += row % 8 * row_bytes + row / 8 * stride + (swizzle ? k / 8 * 16 : k / 8 * leading);
    } else {
      int per = row_bytes / 2;
      address += k % 8 * row_bytes + row % per / 8 * 16;
      address += swizzle ? row / per * leading + k / 8 * stride : row / per * stride + k / 8 * leading;
    }
    return address ^ (address >> 7 & ((1u << swizzle) - 1)) << 4;
  }
  template <class T>
  void read(float* out, int rows, int first) const {  // out[row][k], rows from `first`, 16 columns
    for (int row = 0; row < rows; row += transposed ? 8 : 1) {
      for (int k = 0; k < 16; k += transposed ? 1 : 8) {
        char* from = span(shared(chunk(first + row, k)), 16, 16);
        async_proxy_reads(from, 16);
        for (int e = 0; e < 8; ++e) {
          uint16_t bits;
          memcpy(&bits, from + 2 * e, 2);
          out[(row + (transposed ? e : 0)) * 16 + k + (transposed ? 0 : e)] = T::get(bits, 0);
        }
      }
    }
  }
};

// Registers that products in flight add to. What a thread finds in them before it waits is undefined: NaN here.
struct Registers {
  std::vector<float*> at[32];
  std::vector<float> value[32];
  int last = 0;  // group of the last product that adds to them

  explicit Registers(const std::vector<float*>* lanes) {
    for (int lane = 0; lane < 32; ++lane) {
      at[lane] = lanes[lane];
      for (float* r : at[lane]) value[lane].push_back(*r), *r = bit_cast<float>(~0u);
    }
  }
  void give_back() {
    for (int lane = 0; lane < 32; ++lane)
      for (size_t i = 0; i < at[lane].size(); ++i) *at[lane][i] = value[lane][i];
  }
};

struct Product {
  uint64_t a, b;
  int n, warp;  // warp of the group: it owns 16 of the 64 rows
  bool adds, transposed_a, transposed_b;
  float scale;
  int group;
  std::shared_ptr<Registers> d;
  void (*run)(const Product&);
};

template <class T>
void run_product(const Product& p) {
  std::vector<float> a(16 * 16), b((size_t)p.n * 16);
  Operand(p.a, p.transposed_a).read<T>(a.data(), 16, 16 * p.warp);
  Operand(p.b, p.transposed_b).read<T>(b.data(), p.n, 0);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < p.n / 2; ++i) {  // register i: row g, g, g + 8, g + 8; columns 2 t, 2 t + 1 of every 8
      int row = lane / 4 + 8 * (i >> 1 & 1), column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
      float sum = p.adds ? p.d->value[lane][i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += p.scale * a[row * 16 + k] * b[column * 16 + k];
      p.d->value[lane][i] = sum;
    }
  }
}

// What one warp has in flight. All four warps of a group must issue the same products.
struct WarpState {
  std::vector<Product> waiting;
  std::map<float*, std::shared_ptr<Registers>> registers;
  int group = 0;
  size_t issued = 0;
  bool fenced = false;
};
struct BlockState {
  uint64_t block = ~0ull;
  WarpState warps[32];
  std::vector<Product> issued[8];
};
inline BlockState& own_block() {
  static thread_local BlockState all;
  if (all.block != block_serial()) all = BlockState(), all.block = block_serial();
  return all;
}
inline WarpState& own_warp() { return own_block().warps[warp_index()]; }

struct Issued {
  Product p;
  std::vector<float*> d;
};
inline void issue_product(void** lanes, unsigned mask) {
  if (mask != 0xffffffffu) fail("divergence", "wgmma.mma_async needs all 32 lanes, got 0x%08x", mask);
  WarpState& own = own_warp();
  Product p = ((Issued*)lanes[0])->p;
  std::vector<float*> d[32];
  for (int lane = 0; lane < 32; ++lane) {
    const Issued& o = *(Issued*)lanes[lane];
    if (o.p.a != p.a || o.p.b != p.b) fail("divergence", "wgmma.mma_async: the lanes give different matrix descriptors");
    d[lane] = o.d;
  }
  std::vector<Product>& group = own_block().issued[warp_index() / 4];
  if (own.issued == group.size()) group.push_back(p);
  const Product& first = group[own.issued++];
  if (first.a != p.a || first.b != p.b || first.n != p.n) fail("divergence", "wgmma.mma_async: the warps of a group give different matrix descriptors");
  std::shared_ptr<Registers>& registers = own.registers[d[0][0]];
  if (!registers) {
    if (!own.fenced) fail("misuse", "wgmma.mma_async on registers the threads have used, without wgmma.fence before it");
    registers = std::make_shared<Registers>(d);
  }
  p.group = registers->last = own.group;
  p.d = registers;
  p.warp = (int)warp_index() % 4;
  own.waiting.push_back(p);
  if (!at_once(1)) return;
  for (const Product& each : own.waiting) each.run(each);  // they never overtake each other
  own.waiting.clear();
}
template <class T>
void wgmma(int n, const std::vector<float*>& d, uint64_t a, uint64_t b, bool adds, int sa, int sb, bool ta, bool tb) {
  Index3 e = block_extent();
  if (e.x * e.y * e.z < (warp_index() / 4 + 1) * 128) fail("divergence", "wgmma.mma_async in an incomplete warp group");
  Issued own{{a, b, n, 0, adds, ta, tb, (float)(sa * sb), 0, nullptr, run_product<T>}, d};
  collective(0xffffffffu, MULTIPLY_GROUP, &own, issue_product);
}
inline void wgmma_fence() {
  collective(0xffffffffu, FENCE_GROUP, nullptr, [](void**, unsigned) { own_warp().fenced = true; });
}
inline void wgmma_commit() {
  collective(0xffffffffu, COMMIT_GROUP, nullptr, [](void**, unsigned) { own_warp().group++; });
}
inline void wgmma_wait(int groups_left) {
  collective(0xffffffffu, WAIT_GROUP, &groups_left, [](void** lanes, unsigned) {
    WarpState& own = own_warp();
    int done = own.group - *(int*)lanes[0];
    std::vector<Product> waiting;
    for (const Product& p : own.waiting)
      if (p.group < done) p.run(p); else waiting.push_back(p);
    own.waiting.swap(waiting);
    for (auto i = own.registers.begin(); i != own.registers.end();) {
      if (i->second->last >= done) { ++i; continue; }
      i->second->give_back();
      own.fenced = false;
      i = own.registers.erase(i);
    }
  });
}

}  // namespace ptx
}  // namespace emul
