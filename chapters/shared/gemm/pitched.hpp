// SPDX-License-Identifier: Apache-2.0
// A Gemm whose matrices are parts of wider ones: a slice of packed Q, K and V, logits in padded rows, a chunk of columns.
#pragma once
#include "gemm.hpp"
#include "pitched_store.cuh"

namespace aisp::gemm {

// From one row in memory to the next, in elements; 0: rows follow one another. Of B in groups, all rows of all groups have the
// same. Multiples of 16 bytes, and so are addresses.
struct Pitches {
  std::size_t a = 0, b = 0, c = 0;
  std::size_t other = 0;  // of TmaExchange
};

namespace detail {

// `length`: of a row in memory.
template <class Element>
std::size_t checked_pitch(const char* name, const void* data, std::size_t length, std::size_t pitch) {
  require(pitch >= length, std::string{"the pitch of "} + name + " is " + std::to_string(pitch) + ", and its rows are " +
                               std::to_string(length) + " long");
  require(pitch * sizeof(Element) % 16 == 0,
          std::string{"the pitch of "} + name + " must be a multiple of 16 bytes, not " + std::to_string(pitch) + " elements");
  require(reinterpret_cast<std::uintptr_t>(data) % 16 == 0, std::string{name} + " must begin at a multiple of 16 bytes");
  return pitch;
}

template <class Operand>
CUtensorMap pitched_operand_map(const char* name, const typename Operand::Element* data, std::size_t extent, std::size_t k,
                                std::size_t pitch_or_0, unsigned box) {
  using Element = typename Operand::Element;
  static_assert(!Operand::packed && !in_panels<Operand>, "codes and panels lie in blocks, and have no pitch");
  constexpr bool along_k = Operand::major == Major::k;
  const std::size_t pitch = checked_pitch<Element>(name, data, along_k ? k : extent, pitch_or_0);
  if constexpr (along_k) {
    const std::uint64_t sizes[] = {k, extent}, strides[] = {pitch * sizeof(Element)};
    const std::uint32_t boxes[] = {Operand::tile_k, box};
    return tensor_map(map_type<Element>(), data, sizes, strides, boxes);
  } else {
    const std::uint64_t sizes[] = {64, k, extent / 64}, strides[] = {pitch * sizeof(Element), 64 * sizeof(Element)};
    const std::uint32_t boxes[] = {64, Operand::tile_k, box / 64};
    return tensor_map(map_type<Element>(), data, sizes, strides, boxes);
  }
}

}  // namespace detail

template <class C, class Schedule = Bands, class Epilogue = Identity, class Store = TmaStore<>>
class PitchedGemm {
  using Packed = Gemm<C, Schedule, Epilogue, Store>;
  using Out = typename Packed::Out;

 public:
  using Problem = typename Packed::Problem;
  using Prepared = typename Packed::Prepared;

  explicit PitchedGemm(const Problem& problem, const Pitches& pitches, const Schedule& schedule = {})
      : prepared_{Packed{problem, schedule}.prepared()} {
    static_assert(!Schedule::windows, "a convolution's images are not rows");
    const std::size_t m = problem.m, n = problem.n, k = problem.k, groups = problem.groups;
    const std::size_t columns = n / Epilogue::narrowing;
    auto& maps = prepared_.maps;
    if (m == 0 || n == 0) return;
    if constexpr (!C::A::packed && !in_panels<typename C::A>) {
      if (pitches.a != 0) maps.a = detail::pitched_operand_map<typename C::A>("a", problem.a, m, k, pitches.a, C::tile_m);
    } else detail::require(pitches.a == 0, "a lies in blocks, and has no pitch");
    constexpr bool b_along_k = C::B::major == Major::k;
    if (pitches.b != 0)
      maps.b = detail::pitched_operand_map<typename C::B>("b", problem.b, b_along_k ? groups * n : n, b_along_k ? k : groups * k,
                                                          pitches.b, C::tile_n / C::cluster);
    constexpr int box = Store::template box_columns<C::tile_n / Epilogue::narrowing>;
    if constexpr (box > 0) {
      if (pitches.c != 0) maps.c = result_map<box>("c", problem.c, m, columns, pitches.c);
      if constexpr (exchanges<Store>)
        if (pitches.other != 0) maps.extra = result_map<box>("other", problem.other, m, columns, pitches.other);
    } else if constexpr (requires(Store store) { store.pitch; })
      prepared_.store.pitch =
          detail::narrow(pitches.c == 0 ? columns : detail::checked_pitch<Out>("c", problem.c, columns, pitches.c));
    else detail::require(pitches.c == 0, "this store writes packed rows: PitchedRowsStore takes a pitch");
    if constexpr (!exchanges<Store>) detail::require(pitches.other == 0, "there is no other matrix");
  }

  void run(cudaStream_t stream, const Epilogue& epilogue = {}) const {
    prepared_.run(stream, gemm_kernel<C, Schedule, Epilogue, Store>, epilogue);
  }
  const Prepared& prepared() const { return prepared_; }
  const Schedule& schedule() const { return prepared_.schedule; }
  static constexpr Needs needs() { return Packed::needs(); }

 private:
  template <int box>
  static CUtensorMap result_map(const char* name, const Out* data, std::size_t m, std::size_t columns, std::size_t pitch) {
    const std::uint64_t sizes[] = {columns, m},
                        strides[] = {detail::checked_pitch<Out>(name, data, columns, pitch) * sizeof(Out)};
    const std::uint32_t boxes[] = {box, Store::box_rows};
    return tensor_map(detail::map_type<Out>(), data, sizes, strides, boxes, detail::store_swizzle<box * sizeof(Out)>());
  }

  Prepared prepared_;
};

}  // namespace aisp::gemm
