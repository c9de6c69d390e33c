// The vector of one text from a package of minisbert compile, without Python: its token ids in, numbers out.
//
//     ./encode all-MiniLM-L6-v2.pt2 101 1037 4937 7719 1012 102
//
// docs/serving.md has the command that builds it. The package is a program, and loading it runs it. It does not check
// ids: one beyond the vocabulary, or more of them than the model has positions, ends the process.

#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

int main(int count, char** arguments) try {
    if (count < 3) {
        std::cerr << "usage: " << arguments[0] << " FILE.pt2 ID...\n";
        return 2;
    }
    const int64_t tokens = count - 2;
    const int64_t row = (tokens + 3) / 4 * 4;  // few lengths, because oneDNN keeps a kernel for each

    // What minisbert/models/batching.py calls a Batch, here of one text in one row. `owner` is the number of the text
    // that a token belongs to, -1 for the pads at the end; `places` are the text's tokens in the row.
    at::Tensor ids = at::zeros({1, row}, at::kLong);
    at::Tensor positions = at::zeros({1, row}, at::kLong);
    at::Tensor owner = at::full({1, row}, -1, at::kLong);
    at::Tensor places = at::zeros({1, tokens}, at::kLong);
    for (int64_t i = 0; i < tokens; i++) {
        ids[0][i] = static_cast<int64_t>(std::stoll(arguments[2 + i]));
        positions[0][i] = i;
        owner[0][i] = 0;
        places[0][i] = i;
    }

    // What the package was compiled for, read without running it. minisbert compares it with this CPU and model.
    using Loader = torch::inductor::AOTIModelPackageLoader;
    std::cerr << Loader::load_metadata_from_package(arguments[1], "model").at("minisbert") << "\n";
    Loader loader(arguments[1]);
    const std::vector<at::Tensor> outputs = loader.run({ids, positions, owner, places});  // scaled; before scaling
    const at::Tensor vector = outputs[0][0];  // (D,)
    std::cout.precision(9);
    for (int64_t i = 0; i < vector.size(0); i++) {
        std::cout << vector[i].item<float>() << "\n";
    }
} catch (const c10::Error& error) {
    std::cerr << "error: " << error.what_without_backtrace() << "\n";
    return 2;
} catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
}
