// The data sets that [data] name selects, with their own keys. A program passes the options to the factory of a kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/registry.h"
#include "core/data/datasets.h"
#include "core/nn/layers/image_size.h"

namespace trireme::datasets {

/// By channel: (pixel - mean) / std for pixels between 0 and 1.
struct Normalisation {
  std::vector<double> mean, std;
};
inline const Normalisation kUsualNormalisation{{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};

/// Pillow refuses images with more.
inline constexpr std::int64_t kUsualMostPixels = 178'956'970;

struct ImageOptions {
  std::optional<nn::ImageSize> image_size{};  ///< pixels; unset: the data set's own size
  /// Pixels of the shorter side before a central crop of image_size; unset: the whole image is resized to image_size.
  std::optional<std::int64_t> resize_shorter{};
  /// By channel; unset: those of the loaded weights, else the usual ones of the data set.
  std::optional<std::vector<double>> mean{}, std{};
  bool flip = false;
  bool random_resized_crop = false;
  std::vector<double> crop_scale = {0.08, 1.0};
  std::int64_t rand_augment = 0;  ///< operations per training image
  std::int64_t rand_augment_magnitude = 9;
  double random_erasing = 0;     ///< probability
  double mixup = 0, cutmix = 0;  ///< alpha of the distribution of the shares; 0: none
};

struct DecodedImageOptions : ImageOptions {
  std::string exif = "ignore";                            ///< ignore | apply
  std::optional<std::vector<std::int64_t>> background{};  ///< red, green, blue; unset: alpha is dropped
  std::int64_t max_pixels = kUsualMostPixels;             ///< of an image
  std::optional<double> cache_mb{};  ///< for decoded images, per rank; unset: 512, or all with shard_data
};

/// For data that may have no validation split (held_out.h).
struct HeldOutOptions {
  std::optional<double> validation_share{};  ///< of the training samples of each class; unset: the data have a split
  std::optional<std::int64_t> folds{};       ///< or one of this many parts of each class
  std::int64_t fold = 0;                     ///< which one
  std::int64_t split_seed = 0;
  /// The key by which the validation split is taken from the training samples; null: it is not.
  [[nodiscard]] const char* taken_by() const {
    return validation_share ? "validation_share" : folds ? "folds" : nullptr;
  }
};

struct FolderOptions : DecodedImageOptions, HeldOutOptions {
  std::string path = "";
};
/// Folders of images by split and class (image_folder.h).
data::DatasetFactory image_folder(FolderOptions options = {});

struct LeavesOptions : FolderOptions {
  std::int64_t images = 900;  ///< generated, over all splits; none when `path` names a folder
  std::int64_t leaf_seed = 7;
};
/// Generated images of leaves (leaves.h), or a folder of them.
data::DatasetFactory leaves(LeavesOptions options = {});

struct TensorsOptions : ImageOptions {
  std::string path = "";
};
/// A safetensors file for each split (tensor_dataset.h).
data::DatasetFactory tensors(TensorsOptions options = {});

struct StoredImageOptions : ImageOptions {
  std::string path = "";
  std::int64_t validation_images = 0;  ///< of the training files; 0: the test files are the validation split
  std::string prefix = "";             ///< of the names of MNIST's files; CIFAR's have none
};
/// The files of MNIST, CIFAR-10 and CIFAR-100 (stored_images.h).
data::DatasetFactory mnist(StoredImageOptions options = {});
data::DatasetFactory cifar10(StoredImageOptions options = {});
data::DatasetFactory cifar100(StoredImageOptions options = {});

struct TarShardOptions : DecodedImageOptions {
  std::string train = "", validation = "", test = "";  ///< patterns (shard_pattern.h); test may be empty
  std::vector<std::string> classes{};                  ///< names; empty: those of classes.txt, else numbers
  std::int64_t shuffle_buffer = 1000;                  ///< samples
  std::optional<double> shard_cache_gb{};              ///< ShardCacheOptions::most_gb
  bool runs_commands = true;                           ///< no key: ShardCacheOptions::runs_commands
};
/// Tar archives in WebDataset's convention (tar_index.h).
data::DatasetFactory tar_shards(TarShardOptions options = {});

/// Files by split (split_files.h): a folder, or one file for each split.
struct SplitOptions {
  std::string path = "", train = "", validation = "", test = "";
};

/// What the rows of tables have the model learn (table_targets.h): one class, many labels, or numbers.
struct TargetOptions {
  std::optional<std::string> label{};            ///< column; unset: "label"
  std::string label_separator = "";              ///< between the names in a cell of that column; "": it is one class
  std::vector<std::string> labels{}, numbers{};  ///< columns in place of `label`
};

struct TableOptions : SplitOptions, HeldOutOptions, TargetOptions {};

struct ImageTableOptions : DecodedImageOptions, TableOptions {
  std::optional<std::string> image{};  ///< column; unset: "file_name", "image", "path" or "file"
  std::string images = "";             ///< the folder of relative paths; "": that of the table
  std::string split = "";              ///< column of a single table; "": a table for each split
};
/// Tables of images (image_table_kind.cpp).
data::DatasetFactory image_table(ImageTableOptions options = {});

struct TextClassificationOptions : TableOptions {
  std::optional<std::string> text{};       ///< column; unset: "sentence" or "text"
  std::string text_pair = "";              ///< column; "": samples are single texts
  std::optional<std::string> tokenizer{};  ///< tokenizers::load_tokenizer(); unset: that beside the weights
  std::int64_t max_tokens = 128;
  bool length_buckets = false;
  std::int64_t pad_multiple = 1;
};
/// Tables of texts, or of pairs of texts (labelled_texts.h).
data::DatasetFactory text_classification(TextClassificationOptions options = {});

struct TextOptions : SplitOptions {
  std::optional<double> validation_share{};  ///< of the tokens of the only split; unset: 0.05
  std::string documents = "file";            ///< of .txt: file | lines | blank_lines
  std::string text_key = "text";             ///< of .jsonl
  std::optional<std::string> tokenizer{};    ///< unset: that beside the weights, else "bytes"
  std::int64_t block = 256;                  ///< tokens of a sample
  bool document_mask = false;  ///< tokens do not attend to other documents, and positions begin at 0 in each
  double masking = 0;          ///< share of the tokens that are predicted; 0: each from those before it
};
/// Texts for language models, in blocks of one length (token_blocks.h).
data::DatasetFactory text(TextOptions options = {});

struct ChatOptions : SplitOptions, HeldOutOptions {
  std::optional<std::string> tokenizer{};  ///< unset: that beside the weights, else "bytes"
  std::string chat_template = "";          ///< a file, or "chatml"; "": the tokenizer's
  std::string loss = "answers";            ///< answers | all
  std::int64_t max_tokens = 1024;          ///< of a conversation; with packing of a sample
  bool packing = false;                    ///< several conversations are a sample
  bool length_buckets = false;
  std::int64_t pad_multiple = 1;
};
/// Conversations, of whose tokens only the answers are learned (conversations.h).
data::DatasetFactory chat(ChatOptions options = {});

/// `runs_commands`: whether shards are fetched by their commands (TarShardOptions).
Registry<data::DatasetFactory> all_datasets(bool runs_commands = true);

}  // namespace trireme::datasets
