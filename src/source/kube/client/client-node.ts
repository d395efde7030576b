/*
 * What is taken from @kubernetes/client-node, by its own name: a bundler then leaves out the rest of the package, which
 * it cannot do where a whole package is imported late. To be imported late itself, by whoever needs credentials.
 */
export { KubeConfig } from '@kubernetes/client-node'
