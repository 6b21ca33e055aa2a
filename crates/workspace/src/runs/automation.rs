//! Continuous integration, deployment services and bots: they run with secrets as soon as the change is pushed.

use super::{RunCondition, RunsRule, SOURCES, rule, rule_except, rule_when};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/.github/{workflows,actions}/**", "CI workflow"),
    rule("**/.{forgejo,gitea,gitlab,gitlab-ci,circleci,buildkite,teamcity,tekton,harness,codefresh,jenkins,semaphore,builds,zuul.d,ci}/**", "CI workflow"),
    rule("**/{*.,.}gitlab-ci{.*,}.y{a,}ml", "CI workflow"),
    rule("**/.woodpecker{.yml,.yaml,/**}", "CI workflow"),
    rule("**/.drone.{yml,yaml,jsonnet,star}", "CI workflow"),
    rule("**/.{travis,appveyor,cirrus,semaphore}{.yml,.yaml,.star,/**}", "CI workflow"),
    rule("**/{appveyor,bitrise,wercker,shippable,codefresh,codemagic,codeship-steps,codeship-services,taskcluster}.y{a,}ml", "CI workflow"),
    rule("**/.{bitrise,taskcluster,zuul,prow,build,scrutinizer,lgtm,readthedocs}.y{a,}ml", "CI workflow"),
    rule("**/.actrc", "CI workflow"),
    rule("**/{zuul,readthedocs,action}.y{a,}ml", "CI workflow"),
    rule("**/{.,}azure-pipelines*.y{a,}ml", "CI workflow"),
    rule("**/.{azure-pipelines,pipelines,vsts-ci}{.yml,.yaml,/**}", "CI workflow"),
    rule("**/bitbucket-pipelines.y{a,}ml", "CI workflow"),
    rule_except("**/{jenkinsfile{.*,},*.jenkinsfile}", "CI workflow", SOURCES),
    rule("**/{cloudbuild,buildspec,appspec,amplify}*.y{a,}ml", "CI workflow"),
    rule("**/.{earthly,dagger}/**", "CI workflow"),
    rule("**/dagger.json", "CI workflow"),
    // Bots that open, approve and merge by these rules, and rules of a forge about who has to look.
    rule("**/{.,}{renovate,dependabot}*.{json,json5,yml,yaml}", "CI workflow"),
    rule("**/.github/{settings,mergify,kodiak,auto-merge,auto_assign,repo-settings}.{yml,yaml,toml}", "rules of a forge"),
    rule("**/{.mergify.y{a,}ml,.kodiak.toml,{.,}bors.toml,codeowners}", "rules of a forge"),
    // Deployment services run the commands that these name.
    rule("**/{netlify,fly,railway,nixpacks,railpack,wrangler}.toml", "deployment"),
    rule("**/{vercel,now,firebase,railway,eas,wrangler}.json{c,}", "deployment"),
    rule("**/{render,heroku,app.platform,garden,devspace,okteto,werf}.y{a,}ml", "deployment"),
    rule("**/{.platform.app.yaml,.buildpacks,*.garden.y{a,}ml}", "deployment"),
    rule("**/.{ebextensions,platform,upsun,do,openshift,s2i,elasticbeanstalk}/**", "deployment"),
    rule("**/bin/{compile,detect,release,pre_compile,post_compile}", "deployment"),
    rule_when("**/app.json", "deployment", RunCondition::Keys(&["scripts", "buildpacks", "environments", "formation", "hooks"])),
];
