"""A script that has a configuration of its own, by Hydra."""

import os

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="own_conf", config_name="train")
def main(config: DictConfig) -> None:
    """Say what was composed, and leave a result in the folder that Hydra made."""
    folder = HydraConfig.get().runtime.output_dir
    with open(os.path.join(folder, "result.txt"), "w", encoding="utf-8") as file:
        file.write(f"lr {config.lr} of rank {os.environ['RANK']}\n")
    print(f"lr {config.lr}, sizes {list(config.sizes)}", flush=True)


if __name__ == "__main__":
    main()
