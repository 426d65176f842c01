#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/decoder.h"

// Reading and writing the bytes of checkpoints. JSON headers are TypeScript's; only offsets arrive here.
namespace molt {

struct TensorLocation {
  std::string name;
  std::string file;
  int64_t offset = 0;  // from the file's start
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
};

// The location of every parameter, in `units` order. Throws on the first missing or of another shape. Value heads are
// no checkpoint's and left out.
std::vector<TensorLocation> locateParameters(
    const std::vector<UnitDescription>& units, const std::vector<TensorLocation>& tensors);

// The tensor's bytes, mapped: nothing is read until it is copied from. Throws where the file is too short.
at::Tensor mapTensor(const TensorLocation& location);

// A 64-bit hash of float32 values, order dependent.
uint64_t hashOf(const at::Tensor& values);

// One hash of several tensors, in order.
class Checksum {
 public:
  void update(const at::Tensor& values) { update(hashOf(values)); }
  void update(uint64_t hash);
  std::string hexadecimal() const;

 private:
  uint64_t state_ = 0;
};

// Writes a file front to back; `close` is what makes it durable (fsync) and reports late errors.
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  void write(const void* data, size_t bytes);
  void write(const at::Tensor& values);
  void close();

 private:
  std::string path_;
  int file_;
};

}  // namespace molt
