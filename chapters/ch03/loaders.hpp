// SPDX-License-Identifier: Apache-2.0
// Threads that do what data loaders do beside the GPU's work: normalize images, one after the other, until they are told to rest.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "limits.hpp"

namespace aisp::ch03 {

class Loaders {
 public:
  explicit Loaders(int threads) : images_(static_cast<std::size_t>(threads)) {
    for (int loader = 0; loader < threads; ++loader) threads_.emplace_back([this, loader] { serve(loader); });
  }
  ~Loaders() {
    rest();
    {
      const std::scoped_lock lock{mutex_};
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Loaders(const Loaders&) = delete;
  Loaders& operator=(const Loaders&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Sets `loaders` of them to work on `cpus`, and returns when all have begun.
  void work(int loaders, std::vector<int> cpus) {
    settle();
    {
      const std::scoped_lock lock{mutex_};
      wanted_ = loaders;
      cpus_ = std::move(cpus);
      working_ = true;
    }
    wake_.notify_all();
    while (at_work_.load() != loaders) nap();
  }
  // They stop after the image that they are at; nobody waits for that here.
  void rest() { working_ = false; }
  // Returns when none is at work any more.
  void settle() {
    rest();
    while (at_work_.load() != 0) nap();
  }

 private:
  static constexpr std::size_t pixels = 224 * 224, channels = 3;
  struct Image {
    std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(pixels * channels, 128);  // channels of a pixel side by side
    std::vector<float> planes = std::vector<float>(pixels * channels);                    // one channel after the other
  };

  static void nap() { std::this_thread::sleep_for(std::chrono::microseconds{50}); }

  static void normalize(Image& image) {
    constexpr std::array<float, channels> mean{0.485f, 0.456f, 0.406f}, deviation{0.229f, 0.224f, 0.225f};
    for (std::size_t c = 0; c < channels; ++c) {
      const float scale = 1 / (255 * deviation[c]), offset = -mean[c] / deviation[c];
      for (std::size_t p = 0; p < pixels; ++p)
        image.planes[c * pixels + p] = static_cast<float>(image.bytes[p * channels + c]) * scale + offset;
    }
  }

  bool begin(int loader) {
    std::unique_lock lock{mutex_};
    wake_.wait(lock, [&] { return ending_ || (working_ && loader < wanted_); });
    if (ending_) return false;
    run_only_on(cpus_);
    at_work_.fetch_add(1);
    return true;
  }
  void serve(int loader) {
    while (begin(loader)) {
      while (working_.load(std::memory_order_relaxed)) normalize(images_[static_cast<std::size_t>(loader)]);
      at_work_.fetch_sub(1);
    }
  }

  std::vector<Image> images_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  int wanted_ = 0;
  std::vector<int> cpus_;
  std::atomic<bool> working_{false};
  std::atomic<int> at_work_{0};
  std::vector<std::thread> threads_;
};

}  // namespace aisp::ch03
