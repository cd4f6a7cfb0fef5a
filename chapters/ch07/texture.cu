// SPDX-License-Identifier: Apache-2.0
// An RGBA image of 8192 x 8192 pixels turned by 30 degrees, as training pipelines augment their images. Along a line across the
// rows, neighbours lie 32 KiB apart, so the four pixels around each point cost many lines of cache and as many instructions
// again. A CUDA array is stored in two-dimensional blocks, and the texture unit clamps, converts and filters, with weights of 8
// bits.
#include <aisp/pair.hpp>

#include <algorithm>
#include <cmath>

namespace aisp::ch07 {
namespace {

constexpr int block_side = 16;
constexpr std::size_t channels = 4;
constexpr std::size_t texture_alignment = 512;  // of an image that a texture reads where it lies
// One of 256 levels is 0.0082 of the turned image's root mean square, which is 124 at the least: noise around 127.5, and up to 17
// % of it empty corners.
constexpr Tolerance two_levels = within(0.008, 0.0165);

// The source of output pixel (x, y). The same bits on CPU and GPU.
struct Turn {
  float cosine, sine, centre;
  __host__ __device__ float2 source(int x, int y) const {
    const float dx = static_cast<float>(x) - centre, dy = static_cast<float>(y) - centre;
    return {fmaf(cosine, dx, fmaf(sine, dy, centre)), fmaf(cosine, dy, fmaf(-sine, dx, centre))};
  }
};

__device__ float mix(float a, float b, float weight) { return fmaf(weight, b - a, a); }
__device__ float mix(float a, float b, float c, float d, float2 weight) {
  return mix(mix(a, b, weight.x), mix(c, d, weight.x), weight.y);
}
__device__ unsigned char rounded(float level) { return static_cast<unsigned char>(level + 0.5f); }

// The four pixels around a point by `pixel(x, y)`, and what lies between them.
template <class Pixel>
__device__ uchar4 interpolated(float2 at, Pixel pixel) {
  const float left = floorf(at.x), top = floorf(at.y);
  const float2 weight{at.x - left, at.y - top};
  const int x = static_cast<int>(left), y = static_cast<int>(top);
  const uchar4 a = pixel(x, y), b = pixel(x + 1, y), c = pixel(x, y + 1), d = pixel(x + 1, y + 1);
  return {rounded(mix(a.x, b.x, c.x, d.x, weight)), rounded(mix(a.y, b.y, c.y, d.y, weight)),
          rounded(mix(a.z, b.z, c.z, d.z, weight)), rounded(mix(a.w, b.w, c.w, d.w, weight))};
}

__device__ int2 own_pixel() {
  return {static_cast<int>(blockIdx.x * block_side + threadIdx.x), static_cast<int>(blockIdx.y * block_side + threadIdx.y)};
}

__global__ __launch_bounds__(block_side* block_side) void gathers_kernel(const uchar4* image, uchar4* out, int side, Turn turn) {
  const int2 own = own_pixel();
  const auto pixel = [&](int x, int y) {
    const bool inside = x >= 0 && x < side && y >= 0 && y < side;
    return inside ? image[static_cast<std::size_t>(y) * side + x] : uchar4{0, 0, 0, 0};
  };
  out[static_cast<std::size_t>(own.y) * side + own.x] = interpolated(turn.source(own.x, own.y), pixel);
}

// Texture coordinates name corners of pixels: centres lie half a pixel further.
__global__ __launch_bounds__(block_side* block_side) void texture_fetch_kernel(cudaTextureObject_t image, uchar4* out, int side,
                                                                               Turn turn) {
  const int2 own = own_pixel();
  const auto pixel = [&](int x, int y) {
    return tex2D<uchar4>(image, static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f);
  };
  out[static_cast<std::size_t>(own.y) * side + own.x] = interpolated(turn.source(own.x, own.y), pixel);
}

__global__ __launch_bounds__(block_side* block_side) void texture_filter_kernel(cudaTextureObject_t image, uchar4* out, int side,
                                                                                Turn turn) {
  const int2 own = own_pixel();
  const float2 at = turn.source(own.x, own.y);
  const float4 level = tex2D<float4>(image, at.x + 0.5f, at.y + 0.5f);
  out[static_cast<std::size_t>(own.y) * side + own.x] = {rounded(level.x * 255), rounded(level.y * 255), rounded(level.z * 255),
                                                         rounded(level.w * 255)};
}

// An image in the layout of textures. What lies outside of it is zero.
class ArrayImage {
 public:
  explicit ArrayImage(std::size_t side) {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    check(cudaMallocArray(&array_, &format, side, side));
  }
  ~ArrayImage() { cudaFreeArray(array_); }
  ArrayImage(const ArrayImage&) = delete;
  ArrayImage& operator=(const ArrayImage&) = delete;
  cudaArray_t get() const { return array_; }

 private:
  cudaArray_t array_ = nullptr;
};

class Texture2d {
 public:
  Texture2d(const cudaResourceDesc& image, bool filtered) {
    cudaTextureDesc how{};
    std::fill(std::begin(how.addressMode), std::end(how.addressMode), cudaAddressModeBorder);
    how.filterMode = filtered ? cudaFilterModeLinear : cudaFilterModePoint;
    how.readMode = filtered ? cudaReadModeNormalizedFloat : cudaReadModeElementType;
    check(cudaCreateTextureObject(&texture_, &image, &how, nullptr));
  }
  ~Texture2d() { cudaDestroyTextureObject(texture_); }
  Texture2d(const Texture2d&) = delete;
  Texture2d& operator=(const Texture2d&) = delete;
  cudaTextureObject_t get() const { return texture_; }

 private:
  cudaTextureObject_t texture_ = 0;
};

class Texture final : public Workload {
 public:
  explicit Texture(Setup& setup)
      : radians_{static_cast<double>(setup.size("degrees")) * std::acos(-1.0) / 180},
        side_{side_of(setup.scaled(std::size_t{8192} * 8192, block_side * block_side))},
        turn_{static_cast<float>(std::cos(radians_)), static_cast<float>(std::sin(radians_)), static_cast<float>(side_ - 1) / 2},
        image_{setup.input<std::uint8_t>(side_ * side_ * channels, integers(0, 255),
                                         {.name = "image", .alignment = texture_alignment, .constant = true})},
        turned_{setup.output<std::uint8_t>(side_ * side_ * channels, {.name = "turned"})},
        array_{side_},
        fetched_{array(), false},
        filtered_{array(), true},
        filtered_rows_{rows(), true} {}

  // A square and the same turned by an angle share 2 / (1 + sine + cosine) of their area: so much of the image is read.
  Cost cost() const override {
    const double shared = 2 / (1 + std::sin(radians_) + std::cos(radians_));
    return {.bytes = (1 + shared) * static_cast<double>(turned_.bytes())};
  }
  double expected(std::size_t i) const override {
    return level(i, [](double weight) { return weight; });
  }
  // The unit keeps 8 bits of a weight.
  double expected_quantized(std::string_view, int, std::size_t i) const override {
    return level(i, [](double weight) { return std::round(weight * 256) / 256; });
  }

  void gathers(Launch& launch) {
    launch(gathers_kernel, grid(), reinterpret_cast<const uchar4*>(image_.get()), out(), side_, turn_);
  }
  void into_array(Launch& launch) {
    const std::size_t row_bytes = side_ * channels;
    check(cudaMemcpy2DToArrayAsync(array_.get(), 0, 0, image_.get(), row_bytes, row_bytes, side_, cudaMemcpyDeviceToDevice,
                                   launch.stream));
  }
  void texture_fetch(Launch& launch) { launch(texture_fetch_kernel, grid(), fetched_.get(), out(), side_, turn_); }
  void texture_filter(Launch& launch) { launch(texture_filter_kernel, grid(), filtered_.get(), out(), side_, turn_); }
  void texture_linear(Launch& launch) { launch(texture_filter_kernel, grid(), filtered_rows_.get(), out(), side_, turn_); }

 private:
  static std::size_t side_of(std::size_t pixels) {
    return std::max<std::size_t>(static_cast<std::size_t>(std::sqrt(static_cast<double>(pixels))) / block_side, 1) * block_side;
  }
  Grid grid() const {
    const auto blocks = static_cast<unsigned>(side_ / block_side);
    return {dim3{blocks, blocks}, dim3{block_side, block_side}};
  }
  uchar4* out() const { return reinterpret_cast<uchar4*>(turned_.get()); }

  cudaResourceDesc array() const {
    cudaResourceDesc image{};
    image.resType = cudaResourceTypeArray;
    image.res.array.array = array_.get();
    return image;
  }
  cudaResourceDesc rows() const {
    cudaResourceDesc image{};
    image.resType = cudaResourceTypePitch2D;
    image.res.pitch2D = {const_cast<std::uint8_t*>(image_.get()), cudaCreateChannelDesc<uchar4>(), side_, side_,
                         side_ * channels};
    return image;
  }
  template <class Kept>
  double level(std::size_t i, Kept kept) const {
    const std::size_t pixel = i / channels, channel = i % channels;
    const float2 at = turn_.source(static_cast<int>(pixel % side_), static_cast<int>(pixel / side_));
    const double left = std::floor(at.x), top = std::floor(at.y), across = kept(at.x - left), down = kept(at.y - top);
    const auto around = [&](double x, double y) {
      const bool inside = x >= 0 && y >= 0 && x < static_cast<double>(side_) && y < static_cast<double>(side_);
      return inside ? static_cast<double>(
                          image_.host((static_cast<std::size_t>(y) * side_ + static_cast<std::size_t>(x)) * channels + channel))
                    : 0.0;
    };
    const double above = (1 - across) * around(left, top) + across * around(left + 1, top);
    const double below = (1 - across) * around(left, top + 1) + across * around(left + 1, top + 1);
    return std::floor((1 - down) * above + down * below + 0.5);
  }

  double radians_;
  std::size_t side_;
  Turn turn_;
  Input<std::uint8_t> image_;
  Output<std::uint8_t> turned_;
  ArrayImage array_;
  Texture2d fetched_, filtered_, filtered_rows_;
};

}  // namespace

extern constinit const Pair texture{
    .teaches =
        "the texture unit clamps, converts and filters four pixels in one fetch, with 8-bit weights; an array's 2-D blocks "
        "add little",
    .lesson = "texture_filter",
    .make = make<Texture>,
    .baseline = {.name = "gathers", .run = call<&Texture::gathers>},
    .optimized = variants({{.name = "texture_fetch", .run = call<&Texture::texture_fetch>, .prepare = call<&Texture::into_array>},
                           {.name = "texture_filter",
                            .run = call<&Texture::texture_filter>,
                            .prepare = call<&Texture::into_array>,
                            .changes_precision = true,
                            .tolerance = two_levels}}),
    // The filter without the layout.
    .controls = variants(
        {{.name = "texture_linear", .run = call<&Texture::texture_linear>, .changes_precision = true, .tolerance = two_levels}}),
    .bound = Bound::memory,
    // Values that lie half way between two levels up to the rounding of fp32 may go either way.
    .tolerance = within(1e-3, 0.009),
    .sizes = sizes({{.name = "degrees", .full = 30, .most = 90, .scales = false}}),
    .sweep = cases({{"degrees_1", "degrees=1"},
                    {"degrees_15", "degrees=15"},
                    {"degrees_30", "degrees=30"},
                    {"degrees_45", "degrees=45"},
                    {"degrees_60", "degrees=60"},
                    {"degrees_90", "degrees=90"}}),
    .edges = cases({{"degrees_1", "degrees=1"}, {"degrees_15", "degrees=15"}}),
};

}  // namespace aisp::ch07
