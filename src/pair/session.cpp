// SPDX-License-Identifier: Apache-2.0
#include "pair/session.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <aisp/host.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/one_way.hpp"
#include "base/system/files.hpp"
#include "pair/all_variants.hpp"
#include "pair/running_variant.hpp"

namespace aisp::pair {
namespace {

void write_words(const std::string& path, std::size_t bytes, std::uint64_t seed) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  int error = file < 0 ? errno : 0;
  std::vector<std::uint64_t> block(std::min<std::size_t>((bytes + 7) / 8, 1u << 17));
  for (std::size_t written = 0; written < bytes && error == 0;) {
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = detail::file_word(seed, written / 8 + i);
    const std::size_t part = std::min(bytes - written, block.size() * 8);
    error = base::write_all(file, {reinterpret_cast<const char*>(block.data()), part});
    written += part;
  }
  if (file >= 0 && ::close(file) != 0 && error == 0) error = errno;
  if (error != 0) fail_to_write(path, error);
}

Cache cache_of_last = Cache::cold;

bool is_input(const Buffer& buffer) { return buffer.role == Role::input || buffer.role == Role::inout; }

bool replaceable(const Buffer& buffer) { return buffer.role == Role::input && !buffer.constant; }

// Second words of the seeds that pairs see. Those that order and check have others, so that neither tells the other.
constexpr std::uint64_t of_buffers = 1, of_files = 2, of_others = 3;

}  // namespace

Cache present_cache() { return cache_of_last; }

Session::Session(const Pair& pair, SessionOptions options)
    : pair_{pair},
      options_{std::move(options)},
      sizes_{sizes_in_effect(pair, options_.sizes, options_.scale)},
      launch_{pair.device == Device::gpu} {
  cache_of_last = pair.cache;
  if (on_gpu()) open_streams();
  workload_.reset(pair.make(*this));
  refill(options_.seed);
}

Session::~Session() {
  if (on_gpu()) cudaDeviceSynchronize();
  library_objects_.clear();
  workload_.reset();
  teams_.clear();
  allocations_.clear();
  for (const cudaEvent_t event : extra_events_) cudaEventDestroy(event);
  for (const cudaEvent_t event : fork_join_events_) cudaEventDestroy(event);
  for (const cudaStream_t stream : extra_streams_) cudaStreamDestroy(stream);
  for (const cudaStream_t stream : main_streams_) cudaStreamDestroy(stream);
}

void Session::open_streams() {
  for (const int ordinal : options_.gpus) {
    check(cudaSetDevice(ordinal));
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    main_streams_.push_back(stream);
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    fork_join_events_.push_back(event);
  }
  select_first_gpu();
  launch_.stream = main_streams_.at(0);
  launch_.streams = main_streams_;
}

void Session::select_first_gpu() const {
  if (on_gpu()) check(cudaSetDevice(options_.gpus.at(0)));
}

std::uint64_t Session::seed_of(const Buffer& buffer, std::uint64_t seed) const {
  const auto place = std::ranges::find_if(buffers_, [&](const Buffer& each) { return &each == &buffer; });
  return base::OneWay{seed}(static_cast<std::uint64_t>(place - buffers_.begin()), of_buffers);
}

void Session::fill(Buffer& buffer, std::uint64_t seed) {
  buffer.drawn = seed_of(buffer, seed);
  if (buffer.fill) {
    buffer.filled.resize(buffer.bytes());
    buffer.fill(buffer.filled.data(), buffer.drawn);
  }
  show(buffer);
  restore(buffer);
}

void Session::restore(Buffer& buffer) {
  if (buffer.fill) copy_to(buffer, buffer.filled);
  else fill_pattern(buffer.data, buffer.type, buffer.count, buffer.pattern, buffer.drawn, gpu_of(buffer));
}

// The host copies host memory: a pair may have registered a part of it, and no CUDA copy may span such a border.
void Session::copy_to(Buffer& buffer, const std::vector<std::byte>& contents) {
  if (on_device(buffer)) check(cudaMemcpy(buffer.data, contents.data(), buffer.bytes(), cudaMemcpyDefault));
  else std::ranges::copy(contents, static_cast<std::byte*>(buffer.data));
}

void Session::show(Buffer& buffer) {
  buffer.hidden = hidden_ > 0 && !buffer.constant;
  buffer.seed = buffer.hidden ? 0 : buffer.drawn;
  buffer.host_copy = buffer.hidden || !buffer.fill ? nullptr : buffer.filled.data();
}

void Session::hide(int more) {
  if (more == 0) return;
  hidden_ += more;
  for (Buffer& buffer : buffers_)
    if (is_input(buffer)) show(buffer);
  for (File& file : files_) file.seed = hidden_ > 0 ? FileInput::hidden : file.drawn;
}

Session::Hidden::Hidden(Session& session, const Variant& variant)
    : session_{session}, more_{is_control(session.pair(), variant) ? 0 : 1} {
  session_.hide(more_);
}

void Session::refill(std::uint64_t seed) {
  seed_ = inputs_seed_ = seed;
  for (Buffer& buffer : buffers_) {
    if (is_input(buffer)) fill(buffer, seed);
    else set_bytes(buffer.data, default_poison, buffer.bytes(), gpu_of(buffer));
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::uint64_t file_seed = base::OneWay{seed}(i, of_files);
    if (files_[i].drawn == file_seed) continue;
    files_[i].drawn = file_seed;
    files_[i].seed = hidden_ > 0 ? FileInput::hidden : file_seed;
    write_words(files_[i].path, files_[i].bytes, file_seed);
  }
  paint_red_zones();
}

void Session::paint_red_zones() {
  for (const auto& allocation : allocations_) allocation->paint();
  select_first_gpu();
}

void Session::refill_variable(std::uint64_t seed) {
  inputs_seed_ = seed;
  for (Buffer& buffer : buffers_)
    if (is_input(buffer) && !buffer.constant) fill(buffer, seed);
  select_first_gpu();
}

// A pair's function may keep what it draws for the reference, so that it draws the present contents once more in the end.
void Session::draw_others(std::uint64_t seed) {
  for (Buffer& buffer : buffers_) {
    if (!replaceable(buffer) || !buffer.fill) continue;
    buffer.others.resize(buffer.bytes());
    buffer.fill(buffer.others.data(), seed_of(buffer, seed));
  }
  for (Buffer& buffer : buffers_)
    if (replaceable(buffer) && buffer.fill) buffer.fill(buffer.filled.data(), buffer.drawn);
  others_drawn_ = true;
}

void Session::show_other_inputs() {
  const std::uint64_t seed = base::OneWay{inputs_seed_}(others_shown_++, of_others);
  if (!others_drawn_) draw_others(seed);
  for (Buffer& buffer : buffers_) {
    if (!replaceable(buffer)) continue;
    if (buffer.fill) copy_to(buffer, buffer.others);
    else fill_pattern(buffer.data, buffer.type, buffer.count, buffer.pattern, seed_of(buffer, seed), gpu_of(buffer));
  }
  select_first_gpu();
}

void Session::restore_inputs() {
  for (Buffer& buffer : buffers_)
    if (replaceable(buffer)) restore(buffer);
  select_first_gpu();
}

bool Session::only_constant_inputs() const {
  const auto changes = [](const Buffer& buffer) { return is_input(buffer) && !buffer.constant; };
  return std::ranges::any_of(buffers_, [](const Buffer& buffer) { return is_input(buffer); }) &&
         std::ranges::none_of(buffers_, changes);
}

void Session::restore_inouts() {
  for (Buffer& buffer : buffers_)
    if (buffer.role == Role::inout) restore(buffer);
  select_first_gpu();
}

bool Session::changes_state() const {
  return std::any_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) { return buffer.role == Role::inout; });
}

void Session::poison_outputs(int value) {
  for (const Buffer& buffer : buffers_) {
    if (buffer.role != Role::output) continue;
    if (on_device(buffer)) queue_bytes(buffer.data, value, buffer.bytes(), gpu_of(buffer), nullptr);
    else set_bytes(buffer.data, value, buffer.bytes(), -1);
  }
  synchronize_all();
}

std::uint64_t Session::digest_input_buffers() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i].role == Role::input)
      sum += random_bits(digest(buffers_[i].data, buffers_[i].bytes(), gpu_of(buffers_[i])), i);
  return sum;
}

bool Session::inputs_untouched() {
  const std::uint64_t found = digest_input_buffers();
  for (Buffer& buffer : buffers_)
    if (buffer.role == Role::input) restore(buffer);
  const bool untouched = found == digest_input_buffers();
  select_first_gpu();
  return untouched;
}

std::uint64_t Session::digest_inputs() const {
  std::uint64_t sum = digest_input_buffers();
  for (const File& file : files_) {
    std::ifstream in{file.path, std::ios::binary};
    std::vector<char> block(1u << 20);
    for (std::size_t offset = 0; in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0; ++offset)
      sum += random_bits(digest(block.data(), static_cast<std::size_t>(in.gcount()), -1), offset);
  }
  select_first_gpu();
  return sum;
}

std::vector<std::string> Session::damaged_red_zones() const {
  std::vector<std::string> damages;
  for (const auto& allocation : allocations_)
    if (std::string damage = allocation->damage(); !damage.empty()) damages.push_back(std::move(damage));
  select_first_gpu();
  return damages;
}

Elements Session::elements(const Buffer& buffer, std::size_t count) const {
  return {buffer.data, buffer.type, buffer.element_bytes, count, gpu_of(buffer)};
}

Tolerance Session::limits(const Variant& variant, std::size_t result) const {
  return resolve(tolerances_of(pair_, variant).of(result), results_.at(result)->type);
}

// Sorted elements belong to no group.
Norms Session::compare(const Elements& x, const Elements& reference, const Buffer& buffer, const Tolerance& limits) const {
  return pair::compare(x, reference,
                       {.groups = buffer.unordered ? Axis{} : buffer.groups,
                        .steps = limits.kind == Tolerance::Kind::codes,
                        .bits = limits.kind == Tolerance::Kind::exact});
}

void Session::open_libraries(const Variant& variant) {
  const auto needs = [](const Needs& all, Library library) {
    return std::ranges::find(all.libraries, library) != std::end(all.libraries);
  };
  for (const auto& [library, object] : library_objects_)
    if (needs(pair_.needs, library) || needs(variant.needs, library)) object->open();
}

double Session::prepare(const Variant& variant) {
  const RunningVariant running{variant.name};
  open_libraries(variant);
  if (variant.prepare == nullptr) return 0;
  const auto start = std::chrono::steady_clock::now();
  variant.prepare(*workload_, launch_);
  synchronize_all();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Session::reset(const Variant& variant) {
  const Hidden hidden{*this, variant};
  std::optional<OtherInputs> others;
  if (variant.reset != nullptr) others.emplace(*this);
  restore_inouts();
  note_running_variant(variant.name);
  if (variant.reset != nullptr) variant.reset(*workload_, launch_);
  synchronize_all();
}

void Session::submit(const Variant& variant) {
  std::optional<Hidden> hidden;
  if (hidden_ == 0) hidden.emplace(*this, variant);  // otherwise the executor has, before the timed window
  fork();
  submitted_ = &variant;
  variant.run(*workload_, launch_);
  join();
  if (on_gpu()) check(cudaGetLastError());
}

void Session::fork() {
  if (main_streams_.size() < 2) return;
  check(cudaEventRecord(fork_join_events_[0], main_streams_[0]));
  for (std::size_t i = 1; i < main_streams_.size(); ++i) check(cudaStreamWaitEvent(main_streams_[i], fork_join_events_[0]));
}

void Session::join() {
  if (main_streams_.size() < 2) return;
  for (std::size_t i = 1; i < main_streams_.size(); ++i) {
    check(cudaSetDevice(options_.gpus[i]));
    check(cudaEventRecord(fork_join_events_[i], main_streams_[i]));
    check(cudaStreamWaitEvent(main_streams_[0], fork_join_events_[i]));
  }
  select_first_gpu();
}

void Session::synchronize_all() {
  if (!on_gpu()) return;
  for (const int ordinal : options_.gpus) {
    check(cudaSetDevice(ordinal));
    check(cudaDeviceSynchronize());
  }
  select_first_gpu();
}

double Session::bytes_written(const Variant& variant) const {
  double sum = 0;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Buffer& buffer = *results_[i];
    if ((variant.outputs >> i & 1) != 0 && on_device(buffer) && buffer.device == 0)
      sum += static_cast<double>(buffer.count * buffer.element_bytes);
  }
  return sum;
}

std::uint64_t Session::device_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& allocation : allocations_) sum += allocation->gpu() >= 0 ? allocation->bytes() : 0;
  return sum;
}

std::uint64_t Session::host_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& allocation : allocations_) sum += allocation->gpu() < 0 ? allocation->bytes() : 0;
  return sum;
}

}  // namespace aisp::pair
