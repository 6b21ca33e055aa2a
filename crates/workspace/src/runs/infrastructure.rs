//! Infrastructure, containers and configuration management: applied to machines and clusters, with the rights of the
//! user who applies.

use super::{RunsRule, SOURCES, rule, rule_except};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    // `plan` already runs providers and external data sources.
    rule("**/*.{tf,tofu}{.json,}", "Terraform configuration"),
    rule("**/*.tfvars{.json,}", "Terraform configuration"),
    rule("**/{.terraformrc,terraform.rc,.tofurc,tofu.rc}", "Terraform configuration"),
    rule("**/*.hcl", "HashiCorp configuration"),
    rule("**/*.nomad", "HashiCorp configuration"),
    rule("**/{*.pkr.json,packer.json}", "HashiCorp configuration"),
    rule_except("**/vagrantfile{.*,}", "virtual machine", SOURCES),
    rule("**/pulumi{.*,}.y{a,}ml", "Pulumi project"),
    rule("**/{cdk,cdktf}.json", "cloud deployment"),
    rule("**/serverless{.*,}.{yml,yaml,json,js,cjs,mjs,ts}", "cloud deployment"),
    rule("**/{samconfig.toml,samconfig.y{a,}ml,sst.config.ts,sst.json}", "cloud deployment"),
    // Kubernetes: chart hooks, generators and exec plug-ins.
    rule("**/{chart,skaffold,ctlptl-config,vendir,kbld}.y{a,}ml", "cluster deployment"),
    rule("**/helmfile{.*,}.y{a,}ml{.gotmpl,}", "cluster deployment"),
    rule("**/helmfile.d/**", "cluster deployment"),
    rule("**/kustomization{.yml,.yaml,}", "cluster deployment"),
    rule_except("**/tiltfile{.*,}", "cluster deployment", SOURCES),
    rule("**/{tilt_config,jsonnetfile}.json", "cluster deployment"),
    rule("**/acornfile", "cluster deployment"),
    // Containers.
    rule_except("**/{docker,container}file{.*,}", "container build", SOURCES),
    rule("**/*.{docker,container}file", "container build"),
    rule("**/{docker-,podman-,}compose*.y{a,}ml", "container build"),
    rule("**/docker-bake{.*,}.{hcl,json}", "container build"),
    rule_except("**/{singularity,apptainer}{.*,}", "container build", SOURCES),
    rule("**/{earthfile,distrobox.ini,lima.yaml}", "container build"),
    // Configuration management.
    rule("**/{.,}ansible.cfg", "Ansible"),
    rule("**/.ansible{/**,}", "Ansible"),
    rule("**/{playbook*,site,galaxy,molecule}.y{a,}ml", "Ansible"),
    rule("**/{group_vars,host_vars}/**", "Ansible"),
    rule("**/playbooks/**/*.y{a,}ml", "Ansible"),
    rule("**/roles/*/{tasks,handlers,meta,vars,defaults,library,module_utils,templates,files,*_plugins}/**", "Ansible"),
    rule("**/{inventory,hosts}{.ini,.yml,.yaml}", "Ansible"),
    rule("**/{berksfile,cheffile,policyfile.rb,knife.rb,solo.rb,{.,}kitchen{.*,}.yml,.chef/**,recipes/*.rb,cookbooks/**}", "Chef"),
    rule("**/{*.pp,puppetfile,hiera.yaml,bolt-project.yaml,.fixtures.yml}", "Puppet"),
    rule("**/{*.sls,saltfile}", "Salt"),
    // Process managers start the commands that these name.
    rule_except("**/procfile{.*,}", "task script", SOURCES),
    rule("**/{mprocs,process-compose}{.*,}.y{a,}ml", "task settings"),
    rule("**/{supervisord.conf,circus.ini,pm2.json,gunicorn.conf.py,locustfile.py,locust.conf,uwsgi.ini,alembic.ini}", "task settings"),
    rule("**/.{docker,kube,aws,azure,gcloud,oci}/**", "settings of a tool"),
];
