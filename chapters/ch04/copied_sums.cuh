// SPDX-License-Identifier: Apache-2.0
// An all-reduce of bf16 whose bytes are moved by copy engines: each GPU gets the others' parts of its slice into a mailbox, adds
// them up in a short kernel, and copies the sum to all. The link takes no SM.
#pragma once
#include <cuda_bf16.h>
#include <aisp/setup.hpp>

#include <algorithm>
#include <cstddef>

#include "gpus.hpp"
#include "rows.cuh"

namespace aisp::ch04 {

constexpr unsigned adding_threads = 256;

// values[i] += the sum of the mailbox's parts, of which each is `packets` long.
static __global__ __launch_bounds__(adding_threads) void add_parts_kernel(uint4* values, const uint4* mailbox, int parts,
                                                                          unsigned packets) {
  const unsigned i = blockIdx.x * adding_threads + threadIdx.x;
  if (i >= packets) return;
  float sum[shared::packet];
  shared::unpack(values[i], sum);
  for (int part = 0; part < parts; ++part) {
    float more[shared::packet];
    shared::unpack(mailbox[std::size_t{packets} * static_cast<unsigned>(part) + i], more);
#pragma unroll
    for (int k = 0; k < shared::packet; ++k) sum[k] += more[k];
  }
  values[i] = shared::pack(sum);
}

class CopiedSums {
 public:
  // most: elements of one sum.
  CopiedSums(Setup& setup, const Gpus& gpus, std::size_t most) : gpus_{gpus} {
    const std::size_t others = static_cast<std::size_t>(gpus.count()) - 1;
    for (int gpu = 0; gpu < gpus.count(); ++gpu)
      mailboxes_.add(setup.scratch<__nv_bfloat16>(others * slice(most), {.name = "mailbox", .device = gpu}));
  }

  // Adds up `count` elements, a multiple of 8, that all GPUs hold at `values`, in place. One call at a time.
  void sum(const OnGpus<__nv_bfloat16>& values, std::size_t count, Streams streams) const {
    const int gpus = gpus_.count();
    for (int sender = 0; sender < gpus; ++sender)
      for (int k = 1; k < gpus; ++k) {
        const int owner = (sender + k) % gpus;
        const Slice of = slice_of(owner, count);
        copy(mailboxes_[owner] + static_cast<std::size_t>(gpus - 1 - k) * of.count, owner, values.at[sender] + of.first, sender,
             of.count, streams);
      }
    gpus_.meet(streams);
    for (int owner = 0; owner < gpus; ++owner) {
      const Slice of = slice_of(owner, count);
      const std::size_t packets = of.count / shared::packet;
      if (packets == 0) continue;
      gpus_.launch(owner, streams[owner], add_parts_kernel,
                   {static_cast<unsigned>((packets + adding_threads - 1) / adding_threads), adding_threads},
                   reinterpret_cast<uint4*>(values.at[owner] + of.first), reinterpret_cast<const uint4*>(mailboxes_[owner].get()),
                   gpus - 1, packets);
      for (int k = 1; k < gpus; ++k) {
        const int receiver = (owner + k) % gpus;
        copy(values.at[receiver] + of.first, receiver, values.at[owner] + of.first, owner, of.count, streams);
      }
    }
    gpus_.meet(streams);
  }

 private:
  struct Slice {
    std::size_t first, count;
  };
  std::size_t slice(std::size_t count) const {
    const std::size_t packets = count / shared::packet, gpus = static_cast<std::size_t>(gpus_.count());
    return (packets + gpus - 1) / gpus * shared::packet;
  }
  Slice slice_of(int owner, std::size_t count) const {
    const std::size_t first = std::min(count, static_cast<std::size_t>(owner) * slice(count));
    return {first, std::min(slice(count), count - first)};
  }
  void copy(__nv_bfloat16* to, int receiver, const __nv_bfloat16* from, int sender, std::size_t count, Streams streams) const {
    check(cudaMemcpyPeerAsync(to, gpus_.ordinal(receiver), from, gpus_.ordinal(sender), count * sizeof *from, streams[sender]));
  }

  const Gpus& gpus_;
  Each<Scratch<__nv_bfloat16>> mailboxes_;
};

}  // namespace aisp::ch04
