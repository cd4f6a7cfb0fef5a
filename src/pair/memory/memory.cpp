// SPDX-License-Identifier: Apache-2.0
#include "pair/memory/memory.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/system/on_threads.hpp"
#include "pair/memory/elements.cuh"

namespace aisp::pair {
namespace {

void select(int gpu) { check(cudaSetDevice(gpu)); }

// Calls work(first, last) on slices of [0, count) from a few threads and adds the results. On machines of many CPUs more threads
// would take longer to start and to join than they save.
template <class Result, class Work>
Result in_slices(std::size_t count, Work work) {
  constexpr unsigned most_threads = 16;
  const unsigned cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads = std::clamp<std::size_t>(count / (1u << 20), 1, std::min(cpus, most_threads));
  std::vector<Result> results(threads);
  base::on_threads(threads, [&](std::size_t t) { results[t] = work(count * t / threads, count * (t + 1) / threads); });
  return std::accumulate(results.begin(), results.end(), Result{});
}

struct ByGroup {
  std::vector<Norms> norms;
  ByGroup operator+(const ByGroup& other) const {
    if (norms.empty()) return other;
    ByGroup sum = *this;
    for (std::size_t g = 0; g < other.norms.size(); ++g) sum.norms[g] = sum.norms[g] + other.norms[g];
    return sum;
  }
};

// Calls work with the type as a constant, so that a loop over elements asks for it once.
template <class Work>
auto for_type(ElementType type, const Work& work) {
  using enum ElementType;
  const auto as = [&]<ElementType constant>(std::integral_constant<ElementType, constant> of) { return work(of); };
  switch (type) {
    case f64: return as(std::integral_constant<ElementType, f64>{});
    case f32: return as(std::integral_constant<ElementType, f32>{});
    case f16: return as(std::integral_constant<ElementType, f16>{});
    case bf16: return as(std::integral_constant<ElementType, bf16>{});
    case e4m3: return as(std::integral_constant<ElementType, e4m3>{});
    case e5m2: return as(std::integral_constant<ElementType, e5m2>{});
    case i8: return as(std::integral_constant<ElementType, i8>{});
    case u8: return as(std::integral_constant<ElementType, u8>{});
    case e2m1x2: return as(std::integral_constant<ElementType, e2m1x2>{});
    case s4x2: return as(std::integral_constant<ElementType, s4x2>{});
    case e3m2: return as(std::integral_constant<ElementType, e3m2>{});
    case e8m0: return as(std::integral_constant<ElementType, e8m0>{});
    case i16: return as(std::integral_constant<ElementType, i16>{});
    case u16: return as(std::integral_constant<ElementType, u16>{});
    case i32: return as(std::integral_constant<ElementType, i32>{});
    case u32: return as(std::integral_constant<ElementType, u32>{});
    case i64: return as(std::integral_constant<ElementType, i64>{});
    case u64: return as(std::integral_constant<ElementType, u64>{});
    default: return as(std::integral_constant<ElementType, record>{});
  }
}

// Returns the sum of the squares of elements [first, last).
template <ElementType type>
double squares_of(const void* data, std::size_t first, std::size_t last) {
  constexpr std::size_t lanes = 4;  // sums that do not wait for one another
  double sums[lanes] = {};
  std::size_t i = first;
  for (; i + lanes <= last; i += lanes)
    for (std::size_t k = 0; k < lanes; ++k) {
      const double value = load_value(data, type, i + k);
      sums[k] += value * value;
    }
  for (; i < last; ++i) sums[0] += load_value(data, type, i) * load_value(data, type, i);
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

// Adds the errors of elements [first, last). `rms`: of the reference in each group.
template <ElementType type>
void add_errors(ByGroup& result, const Elements& x, const Elements& reference, const Comparison& how,
                const std::vector<double>& rms, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t group = how.groups.place(i);
    Norms& norms = result.norms[group];
    const double value = load_value(x.data, type, i), expected = load_value(reference.data, reference.type, i);
    const ElementError error = element_error(value, expected, rms[group]);
    norms.difference_squared += error.difference_squared;
    norms.reference_squared += error.reference_squared;
    norms.largest_element_error = std::max(norms.largest_element_error, error.element_error);
    const bool differs = type == reference.type ? !same_bits(x.data, reference.data, x.element_bytes, i) : error.mismatch;
    norms.mismatches += differs;
    norms.not_finite += error.not_finite;
    if (!how.steps || !(differs || error.not_finite)) continue;
    const double steps = element_steps(value, expected, type);
    norms.most_steps = std::max(norms.most_steps, steps);
    norms.moved += steps != 0;
  }
}

const unsigned char* byte_of(const Elements& of, std::size_t index) {
  return static_cast<const unsigned char*>(of.data) + index * of.element_bytes;
}

bool same_bytes(const Elements& x, const Elements& y, std::size_t first, std::size_t last) {
  return std::memcmp(byte_of(x, first), byte_of(y, first), (last - first) * x.element_bytes) == 0;
}

// Calls visit(first, last) on blocks of [first, last) that fit into a core's own cache.
template <class Visit>
void in_blocks(std::size_t first, std::size_t last, const Visit& visit) {
  constexpr std::size_t block = 4096;
  for (; first < last; first = std::min(last, first + block)) visit(first, std::min(last, first + block));
}

std::size_t differing_elements(const Elements& x, const Elements& reference) {
  return in_slices<std::size_t>(x.count, [&](std::size_t first, std::size_t last) {
    std::size_t differ = 0;
    in_blocks(first, last, [&](std::size_t begin, std::size_t end) {
      if (same_bytes(x, reference, begin, end)) return;
      for (std::size_t i = begin; i < end; ++i) differ += !same_bits(x.data, reference.data, x.element_bytes, i);
    });
    return differ;
  });
}

// Returns the sum of the squares of the reference in each group.
std::vector<double> squares_on_host(const Elements& reference, const Axis& groups) {
  const ByGroup all = in_slices<ByGroup>(reference.count, [&](std::size_t first, std::size_t last) {
    ByGroup result{std::vector<Norms>(groups.count)};
    for_type(reference.type, [&](auto type) {
      if (groups.count == 1) {
        result.norms[0].reference_squared = squares_of<type()>(reference.data, first, last);
        return;
      }
      for (std::size_t i = first; i < last; ++i) {
        const double value = load_value(reference.data, type(), i);
        result.norms[groups.place(i)].reference_squared += value * value;
      }
    });
    return result;
  });
  std::vector<double> squares;
  for (const Norms& norms : all.norms) squares.push_back(norms.reference_squared);
  return squares;
}

ByGroup compare_on_host(const Elements& x, const Elements& reference, const Comparison& how, const std::vector<double>& rms) {
  return in_slices<ByGroup>(x.count, [&](std::size_t first, std::size_t last) {
    ByGroup result{std::vector<Norms>(rms.size())};
    for_type(x.type, [&](auto type) {
      in_blocks(first, last, [&](std::size_t begin, std::size_t end) {
        if (type == reference.type && how.groups.count == 1 && same_bytes(x, reference, begin, end)) {
          // A value that is not finite makes the sum so, too: then each element counts by itself.
          const double squares = squares_of<type()>(reference.data, begin, end);
          if (is_finite(squares)) {
            result.norms[0].reference_squared += squares;
            return;
          }
        }
        add_errors<type()>(result, x, reference, how, rms, begin, end);
      });
    });
    return result;
  });
}

template <class T>
void sort_as(void* data, std::size_t count) {
  std::sort(static_cast<T*>(data), static_cast<T*>(data) + count);
}

void sort_records(void* data, std::size_t element_bytes, std::size_t count) {
  std::vector<unsigned char> copy(static_cast<unsigned char*>(data), static_cast<unsigned char*>(data) + count * element_bytes);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::memcmp(&copy[a * element_bytes], &copy[b * element_bytes], element_bytes) < 0;
  });
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(static_cast<unsigned char*>(data) + i * element_bytes, &copy[order[i] * element_bytes], element_bytes);
}

void sort_on_host(void* data, ElementType type, std::size_t element_bytes, std::size_t count) {
  switch (type) {
    case ElementType::f64: return sort_as<double>(data, count);
    case ElementType::f32: return sort_as<float>(data, count);
    case ElementType::i8: return sort_as<std::int8_t>(data, count);
    case ElementType::u8: return sort_as<std::uint8_t>(data, count);
    case ElementType::i16: return sort_as<std::int16_t>(data, count);
    case ElementType::u16: return sort_as<std::uint16_t>(data, count);
    case ElementType::i32: return sort_as<std::int32_t>(data, count);
    case ElementType::u32: return sort_as<std::uint32_t>(data, count);
    case ElementType::i64: return sort_as<std::int64_t>(data, count);
    case ElementType::u64: return sort_as<std::uint64_t>(data, count);
    default: return sort_records(data, element_bytes, count);
  }
}

}  // namespace

double Norms::relative_l2() const {
  if (difference_squared == 0) return 0;
  return reference_squared > 0 ? std::sqrt(difference_squared / reference_squared) : INFINITY;
}

Norms Norms::operator+(const Norms& other) const {
  return {difference_squared + other.difference_squared,
          reference_squared + other.reference_squared,
          std::max(largest_element_error, other.largest_element_error),
          mismatches + other.mismatches,
          not_finite + other.not_finite,
          std::max(most_steps, other.most_steps),
          moved + other.moved};
}

Norms whole_of(const std::vector<Norms>& of_groups) {
  Norms all;
  std::size_t worst = 0;
  double worst_l2 = -1;
  for (std::size_t g = 0; g < of_groups.size(); ++g) {
    all = all + of_groups[g];
    const double l2 = of_groups[g].relative_l2();
    if (l2 > worst_l2) {
      worst = g;
      worst_l2 = l2;
    }
  }
  all.groups = of_groups.size();
  all.group = worst;
  all.group_l2 = std::max(worst_l2, 0.0);
  return all;
}

double steps_between(double value, double reference, ElementType type) { return element_steps(value, reference, type); }

void fill_pattern(void* data, ElementType type, std::size_t count, const Pattern& pattern, std::uint64_t seed, int gpu) {
  if (gpu >= 0) {
    select(gpu);
    return gpu::fill_pattern(data, type, count, pattern, seed);
  }
  in_slices<int>(count, [&](std::size_t first, std::size_t last) {
    for_type(type, [&](auto constant) {
      for (std::size_t i = first; i < last; ++i) store_pattern(data, constant(), i, pattern, seed);
    });
    return 0;
  });
}

void set_bytes(void* data, int value, std::size_t bytes, int gpu) {
  if (bytes == 0) return;
  if (gpu < 0) {
    in_slices<int>(bytes, [&](std::size_t first, std::size_t last) {
      std::memset(static_cast<unsigned char*>(data) + first, value, last - first);
      return 0;
    });
    return;
  }
  select(gpu);
  check(cudaMemset(data, value, bytes));
  check(cudaDeviceSynchronize());
}

std::uint64_t digest(const void* data, std::size_t bytes, int gpu, const DigestKey& key) {
  if (bytes == 0) return 0;
  if (gpu >= 0) {
    select(gpu);
    return gpu::digest(data, bytes, key);
  }
  return in_slices<std::uint64_t>((bytes + 7) / 8, [&](std::size_t first, std::size_t last) {
    std::uint64_t sum = 0;
    for (std::size_t i = first; i < last; ++i) sum += digest_part(data, bytes, i, key);
    return sum;
  });
}

void queue_digest(const void* data, std::size_t bytes, int gpu, std::uint64_t* sum, cudaStream_t stream, const DigestKey& key) {
  if (bytes == 0) return;
  select(gpu);
  gpu::queue_digest(data, bytes, sum, stream, key);
}

void queue_clear(std::uint64_t* sums, std::size_t count, int gpu, cudaStream_t stream) {
  select(gpu);
  gpu::queue_copy(nullptr, sums, count, stream);
}

void queue_publish(const std::uint64_t* sums, std::uint64_t* to, std::size_t count, int gpu, cudaStream_t stream) {
  select(gpu);
  gpu::queue_copy(sums, to, count, stream);
}

void queue_bytes(void* data, int value, std::size_t bytes, int gpu, cudaStream_t stream) {
  if (bytes == 0) return;
  select(gpu);
  gpu::queue_bytes(data, value, bytes, stream);
}

void queue_move(const void* from, void* to, std::size_t bytes, int gpu, cudaStream_t stream) {
  if (bytes == 0) return;
  select(gpu);
  gpu::queue_move(from, to, bytes, stream);
}

std::size_t count_byte_mismatches(const void* data, int value, std::size_t bytes, int gpu) {
  if (bytes == 0) return 0;
  if (gpu >= 0) {
    select(gpu);
    return gpu::count_byte_mismatches(data, value, bytes);
  }
  const auto* x = static_cast<const unsigned char*>(data);
  return in_slices<std::size_t>(bytes, [&](std::size_t first, std::size_t last) {
    return static_cast<std::size_t>(std::count_if(x + first, x + last, [&](unsigned char byte) { return byte != value; }));
  });
}

Norms compare(const Elements& x, const Elements& reference, const Comparison& how) {
  if (x.count == 0) return {};
  if (x.gpu >= 0) {
    select(x.gpu);
    return gpu::compare(x, reference, how);
  }
  if (how.bits) return {.mismatches = differing_elements(x, reference)};
  std::vector<double> rms = squares_on_host(reference, how.groups);
  for (std::size_t g = 0; g < rms.size(); ++g)
    if (const std::size_t size = group_size(how.groups, x.count, g); size > 0)
      rms[g] = std::sqrt(rms[g] / static_cast<double>(size));
  return whole_of(compare_on_host(x, reference, how, rms).norms);
}

void gather(const Elements& from, const std::vector<std::size_t>& indices, void* to) {
  if (indices.empty()) return;
  if (from.gpu >= 0) {
    select(from.gpu);
    return gpu::gather(from, indices, to);
  }
  const std::size_t width = from.element_bytes;
  for (std::size_t i = 0; i < indices.size(); ++i)
    std::memcpy(static_cast<char*>(to) + i * width, static_cast<const char*>(from.data) + indices[i] * width, width);
}

std::size_t count_not_finite(const Elements& x) {
  if (x.count == 0 || !is_floating(x.type)) return 0;
  if (x.gpu >= 0) {
    select(x.gpu);
    return gpu::count_not_finite(x);
  }
  return in_slices<std::size_t>(x.count, [&](std::size_t first, std::size_t last) {
    return for_type(x.type, [&](auto type) {
      std::size_t wrong = 0;
      for (std::size_t i = first; i < last; ++i) wrong += !is_finite(load_value(x.data, type(), i));
      return wrong;
    });
  });
}

std::size_t count_unwritten(const Elements& first, int first_poison, const Elements& second, int second_poison) {
  if (first.count == 0) return 0;
  if (first.gpu >= 0) {
    select(first.gpu);
    return gpu::count_unwritten(first, first_poison, second, second_poison);
  }
  return in_slices<std::size_t>(first.count, [&](std::size_t begin, std::size_t end) {
    std::size_t unwritten = 0;
    for (std::size_t i = begin; i < end; ++i)
      unwritten += holds_byte(first.data, first.element_bytes, i, first_poison) &&
                   holds_byte(second.data, second.element_bytes, i, second_poison);
    return unwritten;
  });
}

void sort_elements(void* data, ElementType type, std::size_t element_bytes, std::size_t count, int gpu) {
  if (count < 2) return;
  if (gpu < 0) return sort_on_host(data, type, element_bytes, count);
  select(gpu);
  if (gpu::sort_elements(data, type, count)) return;
  std::vector<unsigned char> host(count * element_bytes);
  check(cudaMemcpy(host.data(), data, host.size(), cudaMemcpyDeviceToHost));
  sort_on_host(host.data(), type, element_bytes, count);
  check(cudaMemcpy(data, host.data(), host.size(), cudaMemcpyHostToDevice));
}

double element_value(const void* host_data, ElementType type, std::size_t index) { return load_value(host_data, type, index); }

}  // namespace aisp::pair
