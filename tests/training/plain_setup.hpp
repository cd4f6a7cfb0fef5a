// SPDX-License-Identifier: Apache-2.0
// A Setup and a Launch without a harness, for blocks that take them: workspaces are device memory with a poison in it.
#pragma once
#include <aisp/check.hpp>
#include <aisp/launch.hpp>
#include <aisp/opened.hpp>
#include <aisp/setup.hpp>

#include <deque>
#include <stdexcept>

namespace aisp::training::test {

class PlainSetup final : public Setup {
 public:
  PlainSetup() = default;
  ~PlainSetup() {
    for (const BufferView& buffer : buffers_) cudaFree(buffer.data);
  }
  PlainSetup(const PlainSetup&) = delete;
  PlainSetup& operator=(const PlainSetup&) = delete;

  void when_needed(Library, detail::LibraryObject& object) override { object.open(); }
  int gpus() const override { return 1; }
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  int cpus() const override { return 1; }
  bool reproducible() const override { return false; }
  std::size_t scaled(std::size_t full, std::size_t) const override { return full; }
  std::size_t size(std::string_view) const override { return unused<std::size_t>(); }
  std::size_t shape(std::size_t full, std::size_t) const override { return full; }
  FileInput file(const char*, std::size_t) override { return unused<FileInput>(); }
  int device_ordinal(int) const override { return 0; }
  cudaStream_t stream(int, bool) override { return unused<cudaStream_t>(); }
  SmStream stream_on(int, int) override { return unused<SmStream>(); }
  cudaEvent_t event(int) override { return unused<cudaEvent_t>(); }
  ThreadTeam& threads(int, bool) override { return unused<ThreadTeam&>(); }
  FilePath scratch_directory() override { return unused<FilePath>(); }

 private:
  template <class T>
  [[noreturn]] static T unused() {
    throw std::logic_error{"no block of a training step asks for this"};
  }
  void exchange(const void*, std::size_t, void*, std::size_t) override { unused<int>(); }
  BufferView& add(Role, ElementType, std::size_t element_bytes, std::size_t count, Pattern,
                  Function<void(void* host, std::uint64_t seed)>, const BufferOptions&) override {
    BufferView& buffer = buffers_.emplace_back();
    buffer.count = count, buffer.element_bytes = element_bytes;
    check(cudaMalloc(&buffer.data, buffer.bytes() > 0 ? buffer.bytes() : 1));
    check(cudaMemset(buffer.data, 0xFF, buffer.bytes()));  // NaN
    return buffer;
  }

  std::deque<BufferView> buffers_;
};

class PlainLaunch final : public Launch {
 public:
  PlainLaunch() = default;
  void token(int) override {}
  void tokens(std::span<const int>) override {}
  void mark(const char*) override {}
  void mark(const char*, cudaStream_t) override {}
  void push_range(const char*) override {}
  void pop_range() override {}
};

}  // namespace aisp::training::test
