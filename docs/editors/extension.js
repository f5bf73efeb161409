// Starts `tidemill language-server` for rules and resources.
"use strict";

const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const command = workspace.getConfiguration("tidemill").get("command");
  client = new LanguageClient(
    "tidemill",
    "Tidemill",
    { command, args: ["language-server"] },
    { documentSelector: [{ language: "tidelog" }, { language: "yaml" }] },
  );
  await client.start();
};

exports.deactivate = () => client && client.stop();
