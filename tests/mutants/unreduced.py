"""A plugin of pytest's: hypothesis does not look for the smallest failing example."""

from hypothesis import Phase, settings

settings.register_profile("unreduced", phases=[Phase.explicit, Phase.generate])
settings.load_profile("unreduced")
