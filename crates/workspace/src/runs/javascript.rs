//! npm and its kin: scripts of packages, settings of package managers, and configuration that is a program itself.

use super::{RunCondition, RunsRule, rule, rule_when};

/// Keys that npm and similar tools run or fetch by; the others name programs and modules that tools load by
/// themselves.
#[rustfmt::skip]
const PACKAGE_KEYS: RunCondition = RunCondition::Keys(&[
    "scripts", "bin", "config", "directories", "gypfile", "workspaces", "wireit", "stackblitz", "oclif", "build",
    "packageManager", "devEngines", "publishConfig", "volta", "nx", "lerna", "pnpm", "yarn",
    "overrides", "resolutions", "dependenciesMeta", "trustedDependencies", "patchedDependencies", "lavamoat", "allowScripts",
    "husky", "lint-staged", "pre-commit", "pre-push", "simple-git-hooks", "githooks", "gitHooks", "commitlint", "czConfig",
    "prettier", "eslintConfig", "stylelint", "xo", "standard", "remarkConfig", "textlint", "browserslist",
    "babel", "postcss", "svgr", "ts-node", "tsup", "esbuild", "parcel", "preconstruct", "webpack", "swc",
    "jest", "mocha", "ava", "tap", "nyc", "c8", "detox", "vitest", "wdio", "nodemonConfig", "electronmon",
    "release", "release-it", "standard-version", "auto", "np",
]);

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule_when("**/package.json", "package scripts", PACKAGE_KEYS),
    rule("**/{package.json5,package.y{a,}ml,binding.gyp,jsr.json{c,}}", "package scripts"),
    rule("**/{.npmrc,.yarnrc,.yarnrc.yml,{.,}pnpmfile.{js,cjs,mjs},.pnp.{cjs,js,data.json,loader.mjs},{.,}bunfig.toml,pnpm-workspace.yaml,.bowerrc,.node-gyprc,node.config.json}", "package manager settings"),
    rule("**/{.yarn/**,.meteor/*}", "package manager settings"),
    rule("**/{deno,deno.*,import_map}.json{c,}", "build script"),
    rule("**/{nodemon,nx,lerna,rush,workspace,project,angular,.angular-cli,nest-cli,ionic.config,wallaby,testem,jasmine,cypress,intern}.json", "task settings"),
    rule("**/turbo.json{c,}", "task settings"),
    rule("**/{common/config/rush/**,spec/support/jasmine.{json,js,mjs}}", "task settings"),
    rule("**/{moon.y{a,}ml,.moon/**}", "task settings"),
    // Build files.
    rule("**/{gulpfile,gruntfile,jakefile,plopfile,knexfile,ormconfig,webpackfile,rollupfile,brunch-config,ember-cli-build,config-overrides,gatsby-config,gatsby-node,gatsby-browser,gatsby-ssr,truffle-config}{.*,}.{js,cjs,mjs,jsx,ts,cts,mts,tsx,coffee,ls,babel.js,esm.js,json,yml,yaml}", "build script"),
    rule("**/{gulpfile,gruntfile}.{js,ts,mjs,cjs}/**", "build script"),
    rule("**/{jakefile,cakefile}", "build script"),
    // Tools load `NAME.config.*` as a module, or the modules that it names.
    rule("**/{webpack,rspack,rsbuild,rslib,rspress,rollup,rolldown,vite,vitest,vitest.workspace,jest,babel,postcss,tailwind,next,nuxt,svelte,astro,metro,esbuild,tsup,tsdown,unbuild,bunchee,playwright,playwright-ct,cypress,karma,eslint,oxlint,prettier,stylelint,release,semantic-release}{.*,}.config.{js,cjs,mjs,ts,cts,mts,json,json5,yml,yaml,toml,coffee}", "build script"),
    rule("**/{vue,remix,react-router,react-native,solid,app.vinxi,qwik,quasar,snowpack,craco,eleventy,docusaurus,vocs,gridsome,capacitor,forge,electron.vite,electron-builder,uno,unocss,windi,panda,svgo,svgr,lingui,i18next,i18next-parser,orval,openapi-ts,kubb,graphql,codegen,relay,apollo,houdini,drizzle,prisma,sanity,payload,keystone,hardhat,wagmi,ava,mocha,wdio,web-test-runner,puppeteer,storybook,cosmos,ladle,histoire,syncpack,knip,taze,bump,changelog,lage,beachball,ecosystem,sst,trigger,mikro-orm,tsoa,stryker,nitro,vinxi,gatsby,lint-staged,markdownlint,size-limit,depcheck,plop}{.*,}.config.{js,cjs,mjs,ts,cts,mts,json,json5,yml,yaml,toml}", "build script"),
    // At the top of a project, or of a package in it, every such file is a tool's; below, applications use the name as well.
    rule("{,{packages,apps,libs,services,modules,plugins,examples,crates}/*/}*.config.{js,cjs,mjs,ts,cts,mts}", "build script"),
    rule("**/*.conf.{js,cjs,mjs,ts,cts,mts}", "build script"),
    rule("{**/codegen.{yml,yaml},codegen.{json,ts,js}}", "build script"),
    rule("**/{cypress/{plugins,support}/**,test/mocha.opts}", "test or task script"),
    // Directories of tools whose files are programs.
    rule("**/.{storybook,vitepress,vuepress,ladle,histoire,changeset}/**", "settings that name programs"),
    // `.NAMErc` in all its spellings; a script where the ending says so.
    rule("**/.{eslintrc,prettierrc,babelrc,mocharc,stylelintrc,swcrc,nycrc,c8rc,taprc,releaserc,sequelizerc,postcssrc,remarkrc,textlintrc,parcelrc,detoxrc,testcaferc,lighthouserc,puppeteerrc,umirc,fatherrc,graphqlrc,size-limit,dependency-cruiser}{.*,}", "settings that name programs"),
    rule("**/.markdownlint{-cli2,}{.*,}", "settings that name programs"),
    rule("**/{.,}dprint.json{c,}", "settings that name programs"),
    rule("**/tslint.json", "settings that name programs"),
    rule("**/.ember-cli{.js,}", "settings that name programs"),
    rule("**/{cucumber,protractor,nightwatch,codecept}.{js,cjs,mjs,ts,json,yml,yaml}", "test or task settings"),
    rule("**/{foundry,anchor}.toml", "build script"),
    rule("**/{bsconfig,rescript,esy}.json", "build script"),
    rule("**/{shadow-cljs,figwheel-main,*.cljs}.edn", "build script"),
];
