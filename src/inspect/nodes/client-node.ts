/* All of @kubernetes/client-node that kprobe runs. deploy/build.mjs bundles this file apart from the program, so that only
   `kprobe nodes` loads the package. */
export { KubeConfig } from '@kubernetes/client-node/dist/config.js'
export { Exec } from '@kubernetes/client-node/dist/exec.js'
export { OpenIDConnectAuth } from '@kubernetes/client-node/dist/oidc_auth.js'
export { WebSocketHandler } from '@kubernetes/client-node/dist/web-socket-handler.js'
