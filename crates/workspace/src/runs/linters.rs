//! Linters, formatters and test runners that load plug-ins, run commands or take bootstrap code from their settings. Those of
//! JavaScript are in `javascript.rs`.

use super::{RunsRule, rule};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    // Python: plug-ins, init hooks, search paths.
    rule("**/{{.,}pylintrc{.toml,},.flake8,{.,}mypy.ini,.coveragerc,.pyre_configuration,.sqlfluff,.checkov.y{a,}ml,.ansible-lint{.yml,.yaml,}}", "settings that name programs"),
    // Ruby: `require`, and options that do the same.
    rule("**/.{rspec,rspec-local,rubocop*.yml,standard.yml,erb-lint.yml,erb_lint.yml,haml-lint.yml,slim-lint.yml,pronto.yml,mutant.yml}", "settings that name programs"),
    // PHP: bootstrap files and extensions.
    rule("**/{.,}{phpunit,phpcs,psalm,phpstan,phpmd,pest}{.*,}{.xml,.neon,.dist,.php}", "settings that name programs"),
    rule("**/{.php-cs-fixer,.php_cs}{.dist,}{.php,}", "settings that name programs"),
    rule("**/{.phan/**,phpspec.y{a,}ml,behat{.*,}.y{a,}ml,codeception{.*,}.y{a,}ml,infection.json{5,}{.dist,},phpbench.json}", "test or task settings"),
    // Perl: `prove` takes options, and so commands, from the directory it is started in.
    rule("**/.{proverc,perlcriticrc,perltidyrc,replyrc,dataprinter}", "test or task settings"),
    rule("**/{.,}golangci.{yml,yaml,toml,json}", "settings that name programs"),
    rule("**/.custom-gcl.y{a,}ml", "settings that name programs"),
    rule("**/{.luacheckrc,.tflint.hcl,.ctags,.ctags.d/**,.codeclimate.y{a,}ml}", "settings that name programs"),
    rule("**/{.trunk/**,{.,}mega-linter.y{a,}ml,.pre-commit/**}", "settings that name programs"),
    rule("**/{.,}{spectral,redocly}.{yml,yaml,json,js,mjs,ts}", "settings that name programs"),
];
