// SPDX-License-Identifier: Apache-2.0
// Setup, as pairs see a session.
#include <sched.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "pair/session.hpp"

namespace aisp::pair {
namespace {

std::string default_name(Role role, std::size_t index) {
  constexpr const char* roles[] = {"input", "output", "inout", "scratch"};
  return std::string{roles[static_cast<std::size_t>(role)]} + " " + std::to_string(index);
}

bool is_result(const Buffer& buffer) { return buffer.role == Role::output || buffer.role == Role::inout; }

// Throws std::logic_error for a buffer that no pair may declare. `codes`: as in BufferOptions.
void demand_sound(const Buffer& buffer, ElementType codes) {
  if (codes != ElementType::record && (!holds_codes(codes) || buffer.element_bytes != 1))
    throw std::logic_error{buffer.name + ": codes are e2m1x2, s4x2, e3m2 or e8m0, in elements of one byte"};
  if (buffer.type == ElementType::record && is_result(buffer))
    throw std::logic_error{
        buffer.name + ": a record has no value to compare with the float64 reference; declare an output for each of its numbers"};
  if (buffer.groups.stride == 0 || buffer.groups.count == 0) throw std::logic_error{buffer.name + " has groups of nothing"};
}

}  // namespace

Buffer& Session::add(Role role, ElementType type, std::size_t element_bytes, std::size_t count, Pattern pattern,
                     Function<void(void* host, std::uint64_t seed)> fill, const BufferOptions& options) {
  Buffer& buffer = buffers_.emplace_back();
  buffer.name = options.name[0] != '\0' ? options.name : default_name(role, buffers_.size() - 1);
  buffer.role = role;
  buffer.type = options.codes != ElementType::record ? options.codes : type;
  buffer.memory = options.memory != Memory::automatic ? options.memory : on_gpu() ? Memory::device : Memory::pageable;
  buffer.device = options.device;
  buffer.unordered = options.unordered;
  buffer.huge_pages = options.huge_pages;
  if (count > 0) buffer.groups = options.groups;
  buffer.constant = options.constant;
  buffer.alignment = options.alignment;
  buffer.count = count;
  buffer.element_bytes = element_bytes;
  buffer.pattern = pattern;
  buffer.fill = std::move(fill);
  demand_sound(buffer, options.codes);
  if (count < few_elements && count / buffer.groups.count < least_of_a_group) buffer.groups = {};
  const int gpu = on_gpu() ? options_.gpus.at(static_cast<std::size_t>(options.device)) : -1;
  allocations_.push_back(std::make_unique<Allocation>(buffer, gpu, options_.red_zones));
  if (is_result(buffer)) results_.push_back(&buffer);
  select_first_gpu();
  return buffer;
}

FileInput Session::file(const char* name, std::size_t bytes) {
  // Written by the refill that follows the workload's construction; a seed that no refill uses marks it as missing.
  files_.push_back({std::string{scratch_directory()} + "/" + name, bytes, ~std::uint64_t{0}, ~std::uint64_t{0}});
  return FileInput{FilePath{files_.back().path.c_str()}, bytes, &files_.back().seed};
}

std::size_t Session::scaled(std::size_t full, std::size_t multiple) const { return pair::scaled(full, multiple, options_.scale); }

std::size_t Session::size(std::string_view name) const {
  const auto found = sizes_.find(std::string{name});
  if (found == sizes_.end()) throw std::logic_error{"the pair reads a size that it does not declare: " + std::string{name}};
  return found->second;
}

void Session::when_needed(Library library, detail::LibraryObject& object) { library_objects_.emplace_back(library, &object); }

cudaStream_t Session::stream(int gpu, bool urgent) {
  check(cudaSetDevice(device_ordinal(gpu)));
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  extra_streams_.push_back(stream);
  select_first_gpu();
  return stream;
}

SmStream Session::stream_on(int sms, int gpu) {
  check(cudaSetDevice(device_ordinal(gpu)));
  const SmPart& part = sm_parts_.add(device_ordinal(gpu), sms);
  select_first_gpu();
  return {part.stream(), part.sms()};
}

cudaEvent_t Session::event(int gpu) {
  check(cudaSetDevice(device_ordinal(gpu)));
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  extra_events_.push_back(event);
  select_first_gpu();
  return event;
}

ThreadTeam& Session::threads(int workers, bool pinned) {
  teams_.push_back(make_thread_team(workers, pinned));
  return *teams_.back();
}

int Session::cpus() const {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void Session::exchange(const void* own, std::size_t bytes, void* all) {
  constexpr std::size_t most_bytes = 64 << 10;
  if (bytes > most_bytes) throw std::logic_error{"exchange() takes at most 64 KiB of each rank: libraries carry data"};
  auto* to = static_cast<std::byte*>(all);
  for (const std::string& each : rank_group().gather("exchange()", {static_cast<const char*>(own), bytes})) {
    if (each.size() != bytes) throw std::logic_error{"ranks exchange values of different sizes"};
    std::memcpy(to, each.data(), bytes);
    to += bytes;
  }
}

FilePath Session::scratch_directory() {
  if (!scratch_) scratch_.emplace("aisp-scratch-", options_.scratch_parent);
  return FilePath{scratch_->path().c_str()};
}

}  // namespace aisp::pair
